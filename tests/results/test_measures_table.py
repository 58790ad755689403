from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedhql.results.curves import Measures
from fedhql.results.measures_table import measures_table, policies_table
from fedhql.storage.run_directory import Cell
from tests.results.handmade import curve, run_of

TIMES = [10, 20, 30, 40, 50]
RUN = run_of(
    {
        "independent": {
            0: curve(TIMES, [9, 9, 0, 1, 2], [9, 9, 0, 3, 4]),
            1: curve(TIMES, [9, 9, 0, 1, 4], [9, 9, 0, 3, 6]),
        },
        "fedhql": {0: curve(TIMES, [9, 9, 5, 5, 6], [9, 9, 7, 7, 8])},
    }
)


def means(row: Sequence[str]) -> list[str]:
    return [cell.split(" [")[0] for cell in row]


def test_a_run_with_nothing_beside_the_returns_has_no_table() -> None:
    assert policies_table(RUN, 0.95) is None
    assert measures_table(RUN, 0.95) is None


def test_policies_are_averaged_over_the_last_tenth_and_the_second_half() -> None:
    table = policies_table(
        replace(
            RUN,
            after_rounds={"fedhql": {0: curve(TIMES, [0, 0, 3, 3, 15], [0, 0, 3, 3, 15])}},
            consensus={"fedhql": {0: curve(TIMES, [0, 0, 0, 0, 99])}},
        ),
        0.95,
    )
    assert table is not None
    assert table.header[1:] == tuple(
        f"{policy}, {part}"
        for part in ("last 10 %", "second half")
        for policy in ("agents after self-learning", "agents after the round", "consensus policy")
    )
    # Of five evaluations, the second half is the last three.
    assert [means(row) for row in table.rows] == [
        ["DQN alone", "4", "-", "-", "2", "-", "-"],
        ["FedHQL, λ = 1", "7", "15", "99", "6.33", "7", "33"],
    ]


def test_measures_are_averaged_over_agents_and_seeds() -> None:
    measured = {
        Cell("independent", 0): Measures(
            np.array([20.0, 40.0]), np.array([10.0, 12.0]), np.array([0.5, np.nan])
        ),
        Cell("independent", 1): Measures(
            np.array([20.0, 40.0]), np.array([10.0, 12.0]), np.array([np.nan, np.nan])
        ),
    }
    table = measures_table(replace(RUN, measures=measured), 0.95)
    assert table is not None
    assert [means(row) for row in table.rows] == [
        ["DQN alone", "30", "11", "0.5"],
        ["FedHQL, λ = 1", "-", "-", "-"],
    ]
