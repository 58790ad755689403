from dataclasses import replace

import numpy as np

from fedhql.results.curves import Measures
from fedhql.results.measures_table import measures_table
from fedhql.storage.run_directory import Cell
from tests.results.handmade import curve, run_of

RUN = run_of(
    {
        "independent": {0: curve([10, 20], [1, 2], [3, 4]), 1: curve([10, 20], [1, 4], [3, 6])},
        "fedhql": {0: curve([10, 20], [5, 6], [7, 8])},
    }
)


def test_a_run_without_measures_has_no_table() -> None:
    assert measures_table(RUN, 0.95) is None


def test_the_last_tenth_is_averaged_over_agents_and_seeds() -> None:
    measured = {
        Cell("independent", 0): Measures(
            np.array([20.0, 40.0]), np.array([10.0, 12.0]), np.array([0.5, np.nan])
        ),
        Cell("independent", 1): Measures(
            np.array([20.0, 40.0]), np.array([10.0, 12.0]), np.array([np.nan, np.nan])
        ),
    }
    table = measures_table(
        replace(
            RUN,
            after_rounds={"fedhql": {0: curve([10, 20], [0, 16], [0, 18])}},
            consensus={"fedhql": {0: curve([10, 20], [0, 99])}},
            measures=measured,
        ),
        0.95,
    )
    assert table is not None
    alone, federated = table.rows
    assert [cell.split(" [")[0] for cell in alone] == [
        "DQN alone",
        "4",
        "-",
        "-",
        "30",
        "11",
        "0.5",
    ]
    assert [cell.split(" [")[0] for cell in federated][1:] == ["7", "17", "99", "-", "-", "-"]
