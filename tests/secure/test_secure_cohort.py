"""Secure aggregation in one process: whose answers are added up, and that runs do not change."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.engines.cell_run import finish_cell
from fedhql.errors import NoUsableAnswers
from fedhql.federation import InProcessCohort, PooledAnswers, moments
from fedhql.secure import secure_cohort
from fedhql.secure.masks import unmasked_sum
from fedhql.secure.secure_cohort import SecureCohort
from fedhql.settings.experiment import read_settings
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.cli.running import TABULAR

CELL = Cell("fedhql", 0)
STATES = np.arange(4, dtype=np.float32)[:, None]
CART_POLE = """
[environment]
id = "CartPole-v1"
discount = 0.99
[federation]
query_batch = 16
horizon_steps = 4
self_learning_env_steps = 300
[budget]
env_steps_per_agent = 1_100
[evaluation]
episodes = 2
""" + "".join(
    f"[[agents]]\nhidden = [{size}]\nlearning_starts = 50\nlearning_rate = 0.01\n"
    for size in (8, 12, 16)
)


class Fixed:
    """An agent that always gives the same answer."""

    def __init__(self, *values: float) -> None:
        self.values = np.array(values, dtype=np.float32)

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        return np.tile(self.values, (len(states), 1))

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


def asked(*agents: Fixed) -> PooledAnswers:
    return SecureCohort(InProcessCohort(agents, 2), value_bound=1e6).query(STATES)


def test_the_server_gets_only_moments() -> None:
    agents = [Fixed(1, -2), Fixed(3.5, 400), Fixed(-7, 1e6), Fixed(0, 0.1)]
    answers = asked(*agents)
    assert set(vars(answers)) == {"pooled", "members", "refused"}
    plain = moments(np.array([agent.q_values(STATES) for agent in agents]))
    assert answers.pooled.count == 4
    np.testing.assert_allclose(answers.pooled.mean_BA, plain.mean_BA, rtol=1e-12)
    np.testing.assert_allclose(answers.pooled.variance(), plain.variance(), rtol=1e-9, atol=1e-6)


def test_unusable_answers_are_left_out_with_a_reason() -> None:
    good, nan, large = (Fixed(1, 1), Fixed(2, 1), Fixed(3, 1)), Fixed(np.nan, 1), Fixed(-2e6, 1)
    answers = asked(good[0], nan, good[1], large, good[2])
    assert answers.members == (0, 2, 4)
    assert answers.refused == {1: "NaN or infinity", 3: "a value of 2e+06, allowed: 1e+06"}
    assert answers.pooled.mean_BA[0].tolist() == [2, 1]


def test_fewer_than_three_usable_answers_are_an_error() -> None:
    with pytest.raises(NoUsableAnswers, match=r"needs 3 agents .* there are 2 \(agent2: NaN"):
        asked(Fixed(1, 1), Fixed(np.nan, 1), Fixed(1, 1))


def records(home: Path, text: str, overrides: Sequence[str]) -> tuple[str, Any]:
    """Run a cell; return the text of evaluations.csv and the numbers of federation.csv."""
    finish_cell(
        read_settings(text, overrides),
        CELL,
        RunDirectory(home),
        report=lambda progress: None,
        clock=time.monotonic,
        track=(),
    )
    of_cell = RunDirectory(home).cell(CELL)
    rounds = (of_cell / "federation.csv").read_text().splitlines()[1:]
    numbers = [[float(field) for field in line.split(",")[1:]] for line in rounds]
    return (of_cell / "evaluations.csv").read_text(), np.array(numbers)


@pytest.mark.parametrize(
    ("text", "bound", "overrides"),
    [
        (TABULAR.format(budget=2_000), 10, ()),
        (TABULAR.format(budget=2_000), 10, ("federation.broadcast=all-actions",)),
        (TABULAR.format(budget=2_000), 10, ("federation.pessimism=0.5",)),
        (
            TABULAR.format(budget=2_000),
            10,
            ("federation.server_environments=carry-over", "federation.replay_batch=8"),
        ),
        (
            TABULAR.format(budget=2_000),
            10,
            ("federation.rule=bernstein", "federation.bound=1", "federation.confidence=1"),
        ),
        (CART_POLE, 1e6, ()),
    ],
    ids=["mean-std", "all actions", "pessimism", "carry-over", "bernstein", "dqn"],
)
def test_evaluations_are_the_same_as_without_secure_aggregation(
    text: str,
    bound: float,
    overrides: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = records(tmp_path / "plain", text, overrides)
    exchanges: list[int] = []

    def counted(masked: list[Any]) -> Any:
        exchanges.append(len(masked))
        return unmasked_sum(masked)

    monkeypatch.setattr(secure_cohort, "unmasked_sum", counted)
    secure = ("federation.secure_aggregation=true", f"federation.secure_value_bound={bound}")
    masked = records(tmp_path / "masked", text, [*overrides, *secure])
    assert set(exchanges) == {3}, "not every answer was masked"
    assert masked[0] == plain[0]
    assert len(plain[1]) > 2
    np.testing.assert_allclose(masked[1], plain[1], rtol=1e-3, atol=1e-6)
