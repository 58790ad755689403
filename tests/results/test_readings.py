"""Readings of the paper side by side: their distances from its statements."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhql.errors import RunDirectoryError
from fedhql.results.curves import Run
from fedhql.results.paper_experiments import CARTPOLE_5, CARTPOLE_10
from fedhql.results.reading_answers import (
    HEADER,
    answers_of_readings,
    read_readings,
    readings_csv,
)
from fedhql.results.readings import (
    by_reading,
    equally_long,
    nearest_first,
    nearest_shares,
    readings_tables,
)
from fedhql.results.report import paper_tables, write_report
from fedhql.results.verdicts import Range, Verdict, weigh
from tests.results.handmade import curve, run_of
from tests.results.test_claims import the_opposite, the_papers


def verdict(statement: str, *gains: float) -> Verdict:
    allowed = Range(0, np.inf, 500)
    if not gains:
        return Verdict("task", statement, "5.2", allowed, None, None, "")
    found = weigh({"gain": np.array(gains)}, allowed, np.random.default_rng(0))
    return Verdict("task", statement, "5.2", allowed, found, found.p, "")


def test_a_reading_is_what_follows_two_hyphens() -> None:
    names = ("cartpole-n5--sgd-uniform", "cartpole-n5", "lunarlander-n5--sgd-uniform", "n5--adam")
    found = by_reading([run_of({}, name) for name in names])
    assert {reading: [run.name for run in runs] for reading, runs in found.items()} == {
        "sgd-uniform": ["cartpole-n5--sgd-uniform", "lunarlander-n5--sgd-uniform"],
        "": ["cartpole-n5"],
        "adam": ["n5--adam"],
    }


def test_a_reading_is_also_judged_after_its_rounds() -> None:
    arms = {"fedhql": {0: curve([1], [5])}}
    after = {"fedhql": {0: curve([1], [7])}}
    both = replace(run_of(arms, "cartpole-n5--sgd"), after_rounds=after)
    found = by_reading([both, replace(both, name="cartpole-n5")])
    assert list(found) == ["sgd", "sgd, after rounds", ""]
    returns = [of[0].arms["fedhql"][0].returns_NE[0, 0] for of in found.values()]
    assert returns == [5, 7, 5]


def test_the_tables_by_hand() -> None:
    nearest = nearest_first(
        {
            "far": [verdict("a", -99, -101), verdict("b", -150, 100), verdict("c")],
            "near": [verdict("a", 100, 101), verdict("b", -49, -51), verdict("c", -50, -51)],
        }
    )
    distances, statements = readings_tables(nearest, np.random.default_rng(0))
    last = "met, undecided, not met"
    assert distances.header == ("reading", "distance", "nearest in", "task", last)
    assert distances.rows == [
        ("near", "0.067", "100%", "0.067", "1, 0, 2"),  # (0 + 50 + 50.5) / 3 / 500
        ("far", "0.125", "0%", "0.125", "0, 1, 1"),  # (100 + 25) / 2 / 500
    ]
    assert statements.header == ("reading", "a", "b", "c")
    assert statements.rows == [
        ("near", "met (0.00)", "not met (0.10)", "not met (0.10)"),
        ("far", "not met (0.20)", "undecided (0.05)", "-"),
    ]


def test_a_reading_that_ran_more_experiments_comes_first() -> None:
    other = replace(verdict("a", -99, -101), experiment="other task")
    found = nearest_first({"one": [verdict("a", 1, 2)], "two": [verdict("a", -9, -11), other]})
    assert list(found) == ["two", "one"]
    assert readings_tables(found, np.random.default_rng(0))[0].rows == [
        ("two", "0.110", "100%", "0.020", "0.200", "0, 1, 1"),
        ("one", "0.000", "-", "0.000", "-", "0, 1, 0"),
    ]


def test_seeds_are_drawn_again_to_see_how_sure_the_nearest_is() -> None:
    """With two seeds, one of four draws has the first twice: the only one where "other" is near.

    Of 1,000 draws a share of 1/4 is within 0.05 of it but in 1 of 3,000 cases; the seed is fixed.
    """
    found = {"one": [verdict("a", -10, -10)], "other": [verdict("a", 0, -30)]}
    shares = nearest_shares(found, np.random.default_rng(0))
    assert shares["one"] + shares["other"] == 1
    assert abs(shares["other"] - 0.25) < 0.05
    same = {name: [verdict("a", -10, -10)] for name in ("one", "other")}
    assert nearest_shares(same, np.random.default_rng(0)) == {"one": 0.5, "other": 0.5}


def test_readings_are_compared_over_what_all_of_them_reached() -> None:
    long = run_of({"fedhql": {0: curve([50, 100], [5, 9])}}, "n5--long")
    after = {"fedhql": {0: curve([50, 100], [6, 8])}}
    long = replace(long, after_rounds=after, consensus=after)
    short = run_of({"fedhql": {0: curve([50], [7])}}, "n5--short")
    elsewhere = run_of({"fedhql": {0: curve([50, 100], [5, 9])}}, "n10--long")
    own = run_of({}, "n5")  # no reading
    cut, same, other = equally_long([long, own, short, elsewhere])
    assert [run.name for run in (cut, same, other)] == ["n5--long", "n5--short", "n10--long"]
    for arms, value in ((cut.arms, 5), (cut.after_rounds, 6), (cut.consensus, 6)):
        assert arms["fedhql"][0].returns_NE.tolist() == [[value]]
    assert (cut.budget, same.budget, other.budget) == (50, 50, 100)
    assert long.budget == 100
    assert other.arms["fedhql"][0].returns_NE.tolist() == [[5, 9]]


def test_a_report_of_readings_compares_them(tmp_path: Path) -> None:
    runs = [
        replace(the_papers(CARTPOLE_5), name="cartpole-n5--right"),
        replace(the_papers(CARTPOLE_10), name="cartpole-n10--right"),
        replace(the_opposite(CARTPOLE_5), name="cartpole-n5--wrong"),
    ]
    compared, five, ten, right = paper_tables(runs, np.random.default_rng(0))
    assert [row[0] for row in compared.rows] == ["right", "wrong"]
    assert compared.rows[0][1:] == ("0.000", "100%", "0.000", "0.000", "13, 0, 0")
    assert float(compared.rows[1][1]) > 0.3
    assert compared.rows[1][4:] == ("-", "0, 0, 6")
    assert ([row[0] for row in five.rows], [row[0] for row in ten.rows]) == (
        ["right", "wrong"],
        ["right"],
    )
    assert (right.title, len(right.rows)) == ("The paper's statements, read as right", 13)
    assert "the distance to the paper: 0.000." in right.note
    page, text, kept = write_report(runs, tmp_path / "report", np.random.default_rng(0), level=0.95)

    assert compared.markdown() in text.read_text()
    assert '<td class="number met">met <wbr>(0.00)</td>' in page.read_text()
    # The small file says the same, also beside a run.
    tables = [table.markdown() for table in (compared, five, ten)]
    for beside in ([], runs[:1]):
        answers = read_readings(kept)
        found = paper_tables(beside, np.random.default_rng(0), answers)
        assert [table.markdown() for table in found[:3]] == tables
        *_, again = write_report(
            beside, tmp_path / "again", np.random.default_rng(0), level=0.95, kept=answers
        )
        assert sorted(again.read_text().splitlines()) == sorted(kept.read_text().splitlines())


def test_answers_in_several_files_are_one_reading(tmp_path: Path) -> None:
    for name, of in (("cartpole-n5--right", CARTPOLE_5), ("cartpole-n10--right", CARTPOLE_10)):
        answers = answers_of_readings([replace(the_papers(of), name=name)], {})
        (tmp_path / f"{name}.csv").write_text(readings_csv(answers))
    found = read_readings(*sorted(tmp_path.iterdir()))
    assert {reading: len(of) for reading, of in found.items()} == {"right": 13}
    twice = tmp_path / "twice.csv"
    twice.write_text((tmp_path / "cartpole-n5--right.csv").read_text())
    with pytest.raises(RunDirectoryError, match=r"twice\.csv, line 2: .*n5--right\.csv also has"):
        read_readings(*sorted(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no table of readings"),
        ("arm,seed\n", "is no table of readings"),
        (f"{','.join(HEADER)}\nsgd,CartPole N=5,pigs fly,gain,1 2\n", "line 2: no statement"),
        (f"{','.join(HEADER)}\nsgd,CartPole N=5\n", "line 2: allowed: 5 columns"),
        (f"{','.join(HEADER)}\n\n", "line 2: allowed: 5 columns"),
        (f"{','.join(HEADER)}\nsgd,CartPole N=5,pigs fly,gain,\n", "the last of numbers"),
        (f"{','.join(HEADER)}\nsgd,CartPole N=5,pigs fly,gain,1 x\n", "the last of numbers"),
    ],
)
def test_another_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(RunDirectoryError, match=said):
        read_readings(tmp_path / "table.csv")


@pytest.mark.parametrize("runs", [[], [run_of({}, "mine--own")]])
def test_runs_of_ones_own_have_no_statements(runs: list[Run]) -> None:
    assert paper_tables(runs, np.random.default_rng(0)) == []
