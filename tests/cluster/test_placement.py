"""Which bundles agents get, and how many cohorts find theirs. No Ray is needed here."""

import pytest

from fedhql.cluster.placement import Amounts, bundles_for, cohorts_that_fit
from fedhql.cluster.resources import LEAST_CPU, Resources


def cpus(*amounts: float) -> list[Amounts]:
    return [{"CPU": amount} for amount in amounts]


@pytest.mark.parametrize(
    ("bundles", "nodes", "cohorts"),
    [
        (cpus(2, 2, 2), cpus(3, 3), 0),  # though there are as many as they ask for
        (cpus(2, 2, 2), cpus(4, 4), 1),  # though there are enough for one more agent
        (cpus(1, 2, 1), cpus(2, 2), 1),  # the largest first
        (cpus(1, 1), cpus(0, 1, 4, 3), 4),
        (cpus(*[0.1] * 10), cpus(1), 1),  # exactly, whatever floats add up to
        (cpus(1), cpus(100), 9),
        (cpus(1), [], 0),
    ],
)
def test_crews_are_counted_by_placing_them(
    bundles: list[Amounts], nodes: list[Amounts], cohorts: int
) -> None:
    assert cohorts_that_fit(bundles, nodes, at_most=9) == cohorts


def test_what_is_scarce_is_placed_first() -> None:
    nodes: list[Amounts] = [{"CPU": 2, "GPU": 1}, {"CPU": 2, "tpu": 1}, {"CPU": 2}]
    bundles: list[Amounts] = [{"CPU": 2}, {"CPU": 2, "tpu": 1}, {"CPU": 1, "GPU": 1}]
    assert cohorts_that_fit(bundles, nodes, at_most=9) == 1


def test_no_more_is_promised_than_ray_finds() -> None:
    """It spreads: the largest goes to the emptiest node, where both others would have fitted."""
    assert cohorts_that_fit(cpus(3, 2, 2), cpus(4, 3), at_most=9) == 0


def test_who_asks_for_nothing_shares_a_place_on_each_node_with_cores() -> None:
    agents = [Resources(), Resources(cpus=2), Resources(), Resources(), Resources(gpus=1)]
    bundles, bundle_of = bundles_for(agents, [{"away": 1.0}, {"CPU": 8.0}, {"CPU": 1.0}])
    assert bundles == [{"CPU": 2}, {"GPU": 1}, {"CPU": 2 * LEAST_CPU}, {"CPU": LEAST_CPU}]
    assert bundle_of == [2, 0, 3, 2, 1]


def test_there_is_a_place_to_wait_for_if_no_node_has_a_core() -> None:
    assert bundles_for([Resources()] * 3, []) == ([{"CPU": 3 * LEAST_CPU}], [0, 0, 0])
    assert bundles_for([Resources(gpus=1)], []) == ([{"GPU": 1}], [0])
