from collections.abc import Sequence

from fedhql.results.compare import compare_tables
from fedhql.results.curves import Run
from fedhql.results.tables import Table
from tests.results.handmade import curve, run_of, settings


def tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    scores, *_, differing = compare_tables(runs, 0.5)  # of two seeds: from one to the other
    return scores, differing


OURS = run_of(
    {
        "independent": {0: curve([10, 20, 40], [1, 2, 90], [3, 4, 90])},
        "fedhql": {0: curve([12, 22], [8, 6], [10, 8]), 1: curve([12, 22], [3, 3], [3, 3])},
    },
    "ours",
)
THEIRS = run_of(
    {
        "independent": {0: curve([10, 20], [3, 3], [5, 5])},
        "exploration=3": {0: curve([10, 20], [7, 7], [7, 7])},
    },
    "theirs",
)


def test_runs_are_compared_at_what_all_have_consumed() -> None:
    scores, _ = tables([OURS, THEIRS])
    assert "at 20 env steps per agent" in scores.note
    assert "above a seed of ours" in scores.note
    assert scores.header == ("run", "alone", "FedHQL", "λ = 3")
    # Ours, federated: of the evaluations at 12, for 22 is too late. Seed 0: 9; seed 1: 3.
    assert scores.rows == [
        ("ours", "3 [1 seed] / 3", "6 [3, 9] / 6", "-"),
        ("theirs", "4 [1 seed] / 4 (1.00)", "-", "7 [1 seed] / 7"),
    ]


def test_each_is_compared_with_the_first() -> None:
    scores, _ = tables([THEIRS, THEIRS, OURS])
    assert [row[1] for row in scores.rows] == [
        "4 [1 seed] / 4",
        "4 [1 seed] / 4 (0.50)",
        "3 [1 seed] / 3 (0.00)",
    ]


def test_runs_without_evaluations_have_nothing_to_compare() -> None:
    scores, _ = tables([run_of({}), run_of({})])
    assert [row[1:] for row in scores.rows] == [(), ()]


def test_runs_with_the_same_seeds_are_compared_seed_by_seed() -> None:
    """Of two seeds, the 50 % interval goes from one to the other."""
    ours = run_of(
        {
            "independent": {0: curve([10, 20], [1, 1]), 1: curve([10, 20], [5, 5])},
            "fedhql": {
                0: curve([10, 20], [1, 5]),
                1: curve([10, 20], [9, 3]),
                2: curve([10, 20], [99, 99]),
            },
        },
        "ours",
    )
    theirs = run_of(
        {
            "independent": ours.arms["independent"],
            "fedhql": {1: curve([10, 20], [4, 4]), 0: curve([10, 20], [2, 2])},
        },
        "theirs",
    )
    _, found, _ = compare_tables([theirs, ours], 0.5)
    assert found.title == "Differences from theirs, seed by seed"
    # Best: 5 - 2 and 9 - 4; at the end, and in the second half: 5 - 2 and 3 - 4.
    # 3 and 5 have p = 0.156 (t = 4, one degree of freedom); times 3, that is still below 0.5.
    assert found.rows == [("ours", "FedHQL", "4 [3, 5]*", "1 [-1, 3]", "1 [-1, 3]", "2")]
    assert "that of theirs with the same seed, at 20 env steps" in found.note


def test_runs_of_different_numbers_of_agents_are_compared() -> None:
    two = run_of({"fedhql": {n: curve([10], [n], [n + 2]) for n in range(2)}}, "two")
    three = run_of({"fedhql": {n: curve([10], [n], [n], [3 * n]) for n in range(2)}}, "three")
    _, found, _ = compare_tables([two, three], 0.5)
    # Means of 0 and 5/3, less 1 and 2
    assert found.rows[0][2] == "-0.667 [-1, -0.333]"


def seeds_of(name: str, *returns: float) -> Run:
    return run_of({"fedhql": {n: curve([10], [value]) for n, value in enumerate(returns)}}, name)


def test_runs_are_equivalent_if_the_whole_interval_is_inside_the_margin() -> None:
    """Welch, 4 and 4 seeds with a variance of 4/3 each: 6 degrees of freedom, t = 1.9432."""
    first = seeds_of("first", 0, 0, 2, 2)
    near, far = seeds_of("near", 1, 1, 3, 3), seeds_of("far", 20, 20, 22, 22)
    between = seeds_of("between", 9, 9, 11, 11)
    _, _, found, _ = compare_tables([first, near, far, between], 0.95, margin=10)
    assert found.title == "Equivalent within 10"
    assert found.rows == [
        ("near", "FedHQL", "equivalent", "1 [-0.5866, 2.587]", "4 and 4"),
        ("far", "FedHQL", "different", "20 [18.41, 21.59]", "4 and 4"),
        ("between", "FedHQL", "undecided", "9 [7.413, 10.59]", "4 and 4"),
    ]
    assert "from first" in found.note
    assert "inside ±10" in found.note


def test_one_seed_decides_no_equivalence() -> None:
    _, found, _ = compare_tables([seeds_of("one", 1), seeds_of("other", 1)], 0.95, margin=10)
    assert [row[2:4] for row in found.rows] == [("undecided", "0 [-inf, inf]")]


def test_settings_that_differ_are_listed() -> None:
    one, other = settings(2), settings(3, exploration=3.0)
    one["agents"][1]["hidden"] = [8]
    other["agents"][1]["hidden"] = [8, 8]
    runs = [run_of({}, "one", settings_=one), run_of({}, "other", settings_=other)]
    _, differing = tables(runs)
    assert differing.header == ("run", "one → this run")
    assert differing.rows == [
        (
            "other",
            "federation.exploration: 1.0 → 3.0; agents.2.hidden: [8] → [8, 8]; "
            "agents.3.kind: - → dqn",
        )
    ]


def test_what_differs_in_every_agent_is_said_once() -> None:
    one, other = settings(2), settings(2)
    for agent in other["agents"]:
        agent["kind"] = "sb3-dqn"
    _, differing = tables([run_of({}, "one", settings_=one), run_of({}, "two", settings_=other)])
    assert differing.rows == [("two", "agents.kind: dqn → sb3-dqn")]


def test_runs_of_the_same_settings_differ_in_none() -> None:
    assert tables([OURS, THEIRS])[1].rows == [("theirs", "none")]


def test_runs_of_the_same_name_are_told_apart() -> None:
    scores, differing = tables([OURS, THEIRS, OURS])
    assert [row[0] for row in scores.rows] == ["1. ours", "theirs", "3. ours"]
    assert [row[0] for row in differing.rows] == ["theirs", "3. ours"]
