from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhql.errors import RunDirectoryError
from fedhql.results.archive import write_archive
from fedhql.results.curves import curves, run_of_rows
from fedhql.results.load import load_run
from fedhql.storage.run_directory import Cell
from tests.results.handmade import curve, rows_of, run_of, settings, write_run

TWO_AGENTS = curve([10, 20, 40], [1, 3, 2], [6, 4, 8])


def test_rows_become_curves() -> None:
    rows = rows_of("independent", 0, TWO_AGENTS) + rows_of("fedhql", 7, TWO_AGENTS)
    found = curves(rows, agents=2)
    assert {arm: list(seeds) for arm, seeds in found.items()} == {"independent": [0], "fedhql": [7]}
    assert found["fedhql"][7].consumed_E.tolist() == [10, 20, 40]
    assert found["fedhql"][7].returns_NE.tolist() == [[1, 3, 2], [6, 4, 8]]


def test_an_unfinished_last_evaluation_is_left_out() -> None:
    rows = rows_of("independent", 0, TWO_AGENTS)[:-1] + rows_of("fedhql", 0, TWO_AGENTS)
    found = curves(rows, agents=2)
    assert found["independent"][0].returns_NE.tolist() == [[1, 3], [6, 4]]
    assert found["independent"][0].consumed_E.tolist() == [10, 20]
    assert len(found["fedhql"][0].consumed_E) == 3


def test_a_cell_without_a_whole_evaluation_has_no_curve() -> None:
    assert curves(rows_of("fedhql", 0, TWO_AGENTS)[:1], agents=2) == {}
    assert curves([], agents=2) == {}


def test_evaluations_stand_at_the_consumption_where_they_were_due() -> None:
    """Whatever was consumed when they were taken, so that arms have equal numbers of them."""
    rows = rows_of("fedhql", 0, curve([11, 23, 24, 35], [1, 3, 2, 4]))
    found = curves(rows, agents=1, interval=10, budget=35)["fedhql"][0]
    assert found.consumed_E.tolist() == [10, 20, 30, 35]
    assert found.own_E is not None
    assert found.own_E.tolist() == [11, 23, 24, 35]
    part = found.until(29)
    assert part is not None
    assert part.returns_NE.tolist() == [[1, 3]]


def test_a_run_keeps_apart_moments_and_the_consensus_policy(tmp_path: Path) -> None:
    phases, rounds = curve([10, 20], [1, 2], [3, 4]), curve([11, 21], [5, 6], [7, 8])
    consensus = [
        replace(row, agent="consensus", mean_return=row.mean_return + 90)
        for row in rows_of("fedhql", 0, phases)
        if row.agent == "agent1"
    ]
    measured = [
        replace(row, start_value=2.0 * row.mean_return, discounted_return=1.0, silent_units=0.25)
        for row in rows_of("fedhql", 0, phases)
    ]
    rows = [
        *rows_of("independent", 0, phases),
        *measured[:2],
        consensus[0],
        *(replace(row, after="round") for row in rows_of("fedhql", 0, rounds)[:2]),
        *measured[2:],
        consensus[1],
        *(replace(row, after="round") for row in rows_of("fedhql", 0, rounds)[2:]),
    ]
    run = run_of_rows("mine", settings(agents=2), {}, rows, {})
    write_archive(run, tmp_path / "mine")
    for each in (run, load_run(tmp_path / "mine")):
        assert list(each.arms) == ["independent", "fedhql"]
        assert each.arms["fedhql"][0].returns_NE.tolist() == [[1, 2], [3, 4]]
        after = each.after_round()
        assert after.arms["fedhql"][0].returns_NE.tolist() == [[5, 6], [7, 8]]
        assert after.arms["independent"][0].returns_NE.tolist() == [[1, 2], [3, 4]]
        assert each.consensus["fedhql"][0].returns_NE.tolist() == [[91, 92]]
        found = each.measures[Cell("fedhql", 0)]  # of the last evaluation, a tenth of two
        assert found.start_values_N.tolist() == [4, 8]
        assert found.discounted_N.tolist() == [1, 1]
        assert found.silent_units_N.tolist() == [0.25, 0.25]
    only_rounds = run_of_rows(
        "mine", settings(agents=2), {}, [r for r in rows if r.after == "round"], {}
    )
    assert only_rounds.arms["fedhql"][0].returns_NE.tolist() == [[5, 6], [7, 8]]


def test_until_is_what_had_been_seen() -> None:
    def seen(consumed: float) -> list[float]:
        part = TWO_AGENTS.until(consumed)
        return [] if part is None else part.consumed_E.tolist()

    assert seen(9.9) == []
    assert seen(10) == [10]
    assert seen(39.9) == [10, 20]
    assert seen(1000) == [10, 20, 40]
    until_20 = TWO_AGENTS.until(20)
    assert until_20 is not None
    assert until_20.returns_NE.tolist() == [[1, 3], [6, 4]]


def test_scores_by_hand() -> None:
    assert TWO_AGENTS.best.tolist() == [[1, 3, 3], [6, 6, 8]]
    assert TWO_AGENTS.max_mean().tolist() == [3, 8]
    assert TWO_AGENTS.recent_mean().tolist() == [2, 8]
    # Trapezoids of 10 and 20 steps: (1 + 3) / 2 * 10 + (3 + 2) / 2 * 20 = 70, over 30 steps.
    assert TWO_AGENTS.area() == pytest.approx([70 / 30, (5 * 10 + 6 * 20) / 30])


def test_the_recent_mean_is_of_the_last_tenth() -> None:
    long = curve(range(1, 21), range(20))
    assert long.recent_mean().tolist() == [(18 + 19) / 2]


def test_scores_of_one_evaluation_are_that_evaluation() -> None:
    one = curve([10], [7], [8])
    for score in (one.max_mean(), one.recent_mean(), one.area()):
        assert score.tolist() == [7, 8]


def test_a_run_is_read_from_its_files(tmp_path: Path) -> None:
    written = run_of(
        {"independent": {0: TWO_AGENTS, 1: TWO_AGENTS}, "exploration=3": {0: TWO_AGENTS}},
        best_returns={Cell("exploration=3", 0): [1.5, 2.5]},
    )
    write_run(written, tmp_path / "mine")
    run = load_run(tmp_path / "mine")
    assert run.name == "mine"
    assert run.settings == written.settings
    assert run.manifest == written.manifest | {"refused_answers": {}}
    assert {arm: list(seeds) for arm, seeds in run.arms.items()} == {
        "independent": [0, 1],
        "exploration=3": [0],
    }
    assert np.array_equal(run.arms["independent"][1].returns_NE, TWO_AGENTS.returns_NE)
    assert {cell: of.tolist() for cell, of in run.best_returns.items()} == {
        Cell("exploration=3", 0): [1.5, 2.5]
    }
    assert run.budget == 100
    assert run.agents == ["agent1", "agent2"]
    assert run.title == "CartPole-v1, 2 agents"


def test_a_run_that_has_just_begun_has_no_arms(tmp_path: Path) -> None:
    directory = write_run(run_of({}), tmp_path / "begun")
    directory.evaluations.unlink()
    assert load_run(directory.path).arms == {}


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"holds no run of fedhql \(no manifest.json\)"):
        load_run(tmp_path)


NAMED = {
    "learning_rate=0.1": {0: TWO_AGENTS},
    "exploration=3": {0: TWO_AGENTS},
    "fedhql": {0: TWO_AGENTS},
    "exploration=3,learning_rate=0.1": {0: TWO_AGENTS},
    "exploration=0": {0: TWO_AGENTS},
    "independent": {0: TWO_AGENTS},
}


def test_arms_are_ordered_by_their_exploration() -> None:
    run = run_of(NAMED)
    assert run.ordered_arms == [
        "independent",
        "exploration=0",
        "fedhql",
        "exploration=3",
        "exploration=3,learning_rate=0.1",
        "learning_rate=0.1",
    ]
    assert run.federated_arms == run.ordered_arms[1:]
    assert run_of({"fedhql": {}}).ordered_arms == ["fedhql"]


def test_exploration_is_of_arms_that_differ_in_nothing_else() -> None:
    run = run_of(NAMED, exploration=2.0)
    assert {arm: run.exploration(arm) for arm in run.arms} == {
        "learning_rate=0.1": None,
        "exploration=3": 3,
        "fedhql": 2,
        "exploration=3,learning_rate=0.1": None,
        "exploration=0": 0,
        "independent": None,
    }


def test_labels_are_the_papers() -> None:
    run = run_of(NAMED)
    assert [run.label(arm) for arm in run.ordered_arms] == [
        "DQN alone",
        "FedHQL, λ = 0",
        "FedHQL, λ = 1",
        "FedHQL, λ = 3",
        "FedHQL, λ = 3, α = 0.1",
        "FedHQL, α = 0.1",
    ]
    assert run_of(NAMED, kind="sb3-dqn").label("independent") == "DQN alone"
    mixed = settings(2)
    mixed["agents"][1]["kind"] = "tabular"
    assert run_of(NAMED, settings_=mixed).label("independent") == "alone"


def test_what_is_not_the_papers_says_so_and_has_no_lambda_of_the_papers() -> None:
    run = run_of(NAMED, rule="bernstein")
    assert run.label("fedhql") == "FedHQL, bernstein"
    assert run.exploration("fedhql") is None
    assert run.exploration("exploration=3") is None
    assert run.label("rule=median-mad") == "FedHQL, rule = median-mad"
    past = settings(2)
    past["federation"] |= {"broadcast": "all-actions", "server_environments": "reset"}
    run = run_of(NAMED, settings_=past)
    assert run.label("fedhql") == "FedHQL, λ = 1, all-actions"
    assert run.exploration("exploration=3") is None


def test_a_server_that_explores_or_remembers_is_not_the_papers() -> None:
    for key, value in (("random_actions", 0.5), ("replay_batch", 96)):
        past = settings(2)
        past["federation"][key] = value
        run = run_of(NAMED, settings_=past)
        assert run.label("fedhql") == f"FedHQL, λ = 1, {key} = {value:g}"
        assert run.exploration("fedhql") is None
