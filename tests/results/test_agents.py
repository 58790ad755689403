"""docs/agents.md says what the curves in docs/agents/mixed say."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhql.results.curves import Arms
from fedhql.results.load import load_run
from fedhql.results.statistics import t_interval

ROOT = Path(__file__).parents[2]
ARCHIVE, PAGE = ROOT / "docs/agents/mixed", ROOT / "docs/agents.md"
AGENTS = ["`dqn`", "`dqn` without hidden layers", "`sb3-qrdqn`", "`sb3-ppo`", "`sb3-a2c`"]


def mean_returns(arms: Arms, arm: str) -> NDArray[np.float64]:
    """(S, N): the mean over the evaluations of a seed."""
    seeds = arms[arm]
    assert sorted(seeds) == [100, 101, 102]
    curves = [seeds[seed] for seed in sorted(seeds)]
    assert all(curve.returns_NE.shape[1] == 10 for curve in curves)
    return np.array([curve.returns_NE.mean(axis=1) for curve in curves])


def whole(value: float) -> int:
    return round(round(value, 6))  # rounding errors of a sum must not decide about a half


def row(name: str, alone_S: NDArray[np.float64], federated_S: NDArray[np.float64]) -> str:
    difference_S = federated_S - alone_S
    low, high = map(whole, t_interval(difference_S))
    means = [whole(values_S.mean()) for values_S in (alone_S, federated_S, difference_S)]
    return f"| {name} | {means[0]} | {means[1]} | {means[2]} [{low}, {high}] |"


def test_the_table_is_the_curves() -> None:
    arms = load_run(ARCHIVE).arms
    alone_SN, federated_SN = (mean_returns(arms, arm) for arm in ("independent", "fedhql"))
    rows = [row(name, alone_SN[:, n], federated_SN[:, n]) for n, name in enumerate(AGENTS)]
    rows.append(row("mean of the five", alone_SN.mean(axis=1), federated_SN.mean(axis=1)))
    assert "\n".join(rows) in PAGE.read_text()


def test_the_consensus_policy_is_the_curves() -> None:
    mean = mean_returns(load_run(ARCHIVE).consensus, "fedhql").mean()
    assert f"returned {whole(mean)} on average" in " ".join(PAGE.read_text().split())
