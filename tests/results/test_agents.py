"""docs/agents.md says what the curves in docs/agents say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhql.results.curves import Arms, Curve, Run
from fedhql.results.load import load_run
from fedhql.results.statistics import holm, t_interval, t_p_above
from fedhql.settings.experiment import read_settings_file

Floats = NDArray[np.float64]
ROOT = Path(__file__).parents[2]
ARCHIVES, PAGE = ROOT / "docs/agents", ROOT / "docs/agents.md"
FIVE = ["`dqn`", "`dqn` without hidden layers", "`sb3-qrdqn`", "`sb3-ppo`", "`sb3-a2c`"]
TASKS = ("CartPole", "Acrobot", "MountainCar")


def mean(curve: Curve) -> Floats:
    return curve.returns_NE.mean(axis=1)


def first_half_mean(curve: Curve) -> Floats:
    return curve.returns_NE[:, : len(curve.consumed_E) // 2].mean(axis=1)


def archived(name: str) -> Run:
    """Return the run. All its cells have all their evaluations."""
    run = load_run(ARCHIVES / name)
    evaluations = run.budget // run.settings["evaluation"]["interval_env_steps"]
    for arms, names in ((run.arms, {"independent", "fedhql"}), (run.consensus, {"fedhql"})):
        assert set(arms) == names
        assert all(sorted(seeds) == run.manifest["seeds"] for seeds in arms.values())
        curves = [curve for seeds in arms.values() for curve in seeds.values()]
        assert all(len(curve.consumed_E) == evaluations for curve in curves)
    return run


def scores(arms: Arms, arm: str, score: Callable[[Curve], Floats]) -> Floats:
    """(S, N)."""
    return np.array([score(arms[arm][seed]) for seed in sorted(arms[arm])])


def alone_and_federated(run: Run, score: Callable[[Curve], Floats]) -> tuple[Floats, Floats]:
    return scores(run.arms, "independent", score), scores(run.arms, "fedhql", score)


def whole(value: float) -> int:
    return round(round(value, 6))  # rounding errors of a sum must not decide about a half


def difference(alone_S: Floats, federated_S: Floats) -> str:
    low, high = map(whole, t_interval(federated_S - alone_S))
    return f"{whole((federated_S - alone_S).mean())} [{low}, {high}]"


def row(name: str, alone_S: Floats, federated_S: Floats) -> str:
    means = [whole(values_S.mean()) for values_S in (alone_S, federated_S)]
    return f"| {name} | {means[0]} | {means[1]} | {difference(alone_S, federated_S)} |"


def rows(names: list[str], total: str, alone_SN: Floats, federated_SN: Floats) -> list[str]:
    """Return a row for each agent, and one for their mean."""
    of_agents = zip(names, alone_SN.T, federated_SN.T, strict=True)
    means = row(total, alone_SN.mean(axis=1), federated_SN.mean(axis=1))
    return [*(row(*of_agent) for of_agent in of_agents), means]


def holm_p(differences_SC: Floats) -> Floats:
    """Return the two-sided p of Student's test, corrected for C comparisons."""
    p_C = [2 * min(t_p_above(each, 0), t_p_above(-each, 0)) for each in differences_SC.T]
    return holm(np.minimum(p_C, 1))


def three_tasks() -> tuple[list[str], int]:
    """Return the table's rows, and how many agents gain after Holm's correction."""
    runs = [archived(task.lower()) for task in TASKS]
    found = [alone_and_federated(run, Curve.second_half_mean) for run in runs]
    differences_SC = np.hstack([federated_SN - alone_SN for alone_SN, federated_SN in found])
    p_C = holm_p(differences_SC)
    table = []
    for task, run, of_task, p_N in zip(TASKS, runs, found, np.split(p_C, len(TASKS)), strict=True):
        names = [f"{task} | `{agent}`" for agent in run.agents]
        texts = [*(f"{p:.2g}" if p >= 0.0001 else "< 0.0001" for p in p_N), "-"]
        lines = rows(names, f"{task} | mean of the four", *of_task)
        table += [f"{line} {p} |" for line, p in zip(lines, texts, strict=True)]
    return table, int(((p_C <= 0.05) & (differences_SC.mean(axis=0) > 0)).sum())


def test_the_table_of_five_is_the_curves() -> None:
    found = alone_and_federated(archived("mixed"), mean)
    assert "\n".join(rows(FIVE, "mean of the five", *found)) in PAGE.read_text()


def test_the_table_of_three_tasks_is_the_curves() -> None:
    table, gains = three_tasks()
    assert "\n".join(table) in PAGE.read_text()
    assert gains == 6
    assert "Six of the 12 differences are gains at 5 %" in PAGE.read_text()


def test_the_runs_have_the_settings_of_the_examples() -> None:
    for task in (task.lower() for task in TASKS):
        example = read_settings_file(ROOT / f"examples/mixed/{task}.toml")
        assert read_settings_file(ARCHIVES / task / "settings.toml") == example


def test_the_consensus_policies_are_the_curves() -> None:
    five = scores(archived("mixed").consensus, "fedhql", mean).mean()
    assert f"returned {whole(five)} on average" in " ".join(PAGE.read_text().split())
    table = []
    for task in TASKS:
        run = archived(task.lower())
        alone_SN, federated_SN = alone_and_federated(run, Curve.second_half_mean)
        best = int(alone_SN.mean(axis=0).argmax())
        assert federated_SN.mean(axis=0).max() < alone_SN[:, best].mean()  # as the page says
        consensus_S = scores(run.consensus, "fedhql", Curve.second_half_mean)[:, 0]
        table.append(row(f"{task} | `{run.agents[best]}`", alone_SN[:, best], consensus_S))
    assert "\n".join(table) in PAGE.read_text()


def test_what_the_second_half_leaves_out_is_the_curves() -> None:
    run, page = archived("cartpole"), " ".join(PAGE.read_text().split())
    ppo = run.agents.index("ppo")
    alone_S, federated_S = (of[:, ppo] for of in alone_and_federated(run, first_half_mean))
    told = f"{whole(federated_S.mean())} federated and {whole(alone_S.mean())} alone"
    assert f"returns {told}: {difference(alone_S, federated_S)}" in page
    alone_S, federated_S = (of[:, ppo] for of in alone_and_federated(run, mean))
    assert f"Over all evaluations it loses, too: {difference(alone_S, federated_S)}" in page


def test_three_agents_alone_never_arrive_on_mountaincar() -> None:
    run = archived("mountaincar")
    alone_NX = np.hstack([curve.returns_NE for curve in run.arms["independent"].values()])
    never = [name for name, of in zip(run.agents, alone_NX, strict=True) if (of == -200).all()]
    assert never == ["dqn", "qrdqn", "ppo"]
    assert "every evaluation returns -200" in PAGE.read_text()
