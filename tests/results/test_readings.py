"""Readings of the paper side by side: their distances from its statements."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.curves import Run
from fedhql.results.paper_experiments import CARTPOLE_5, CARTPOLE_10
from fedhql.results.readings import by_reading, readings_table
from fedhql.results.report import paper_tables, write_report
from fedhql.results.verdicts import Range, Verdict, weigh
from tests.results.handmade import run_of
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


def test_the_table_by_hand() -> None:
    table = readings_table(
        {
            "far": [verdict("a", -99, -101), verdict("b", -150, 100), verdict("c")],
            "near": [verdict("a", 100, 101), verdict("b", -49, -51), verdict("c", -499, -501)],
        }
    )
    assert table.header == ("experiment", "the paper's statement", "near", "far")
    assert table.rows == [
        # (0 + 50 + 500) / 3 and (100 + 25) / 2, over 500.
        ("all", "distance: mean shortfall", "0.367", "0.125"),
        ("all", "the same over the 2 statements that all readings ran", "0.050", "0.125"),
        ("all", "met, undecided, not met", "1, 0, 2", "0, 1, 1"),
        ("task", "a", "met (0.00)", "not met (0.20)"),
        ("task", "b", "not met (0.10)", "undecided (0.05)"),
        ("task", "c", "not met (1.00)", "-"),
    ]


def test_a_report_of_readings_compares_them(tmp_path: Path) -> None:
    runs = [
        replace(the_papers(CARTPOLE_5), name="cartpole-n5--right"),
        replace(the_papers(CARTPOLE_10), name="cartpole-n10--right"),
        replace(the_opposite(CARTPOLE_5), name="cartpole-n5--wrong"),
    ]
    compared, right, wrong = paper_tables(runs, np.random.default_rng(0))
    assert compared.header[2:] == ("right", "wrong")
    assert compared.rows[0][2] == "0.000"
    assert float(compared.rows[0][3]) > 0.3
    assert compared.rows[2][2:] == ("13, 0, 0", "0, 0, 6")
    assert (right.title, len(right.rows)) == ("The paper's statements, read as right", 13)
    assert (wrong.title, len(wrong.rows)) == ("The paper's statements, read as wrong", 6)
    assert "the distance to the paper: 0.000." in right.note
    page, text = write_report(runs, tmp_path / "report", np.random.default_rng(0), level=0.95)

    assert compared.markdown() in text.read_text()
    assert '<td class="number met">met <wbr>(0.00)</td>' in page.read_text()


@pytest.mark.parametrize("runs", [[], [run_of({}, "mine--own")]])
def test_runs_of_ones_own_have_no_statements(runs: list[Run]) -> None:
    assert paper_tables(runs, np.random.default_rng(0)) == []
