"""Which bundles agents get, and how many cohorts fit. These tests need no Ray."""

import pytest

from fedhql.cluster.placement import Amounts, bundles_for, cohorts_that_fit
from fedhql.cluster.resources import LEAST_CPU, Resources


def cpus(*amounts: float) -> list[Amounts]:
    return [{"CPU": amount} for amount in amounts]


@pytest.mark.parametrize(
    ("bundles", "nodes", "cohorts"),
    [
        (
            cpus(2, 2, 2),
            cpus(3, 3),
            0,
        ),  # there are 6 CPUs in total, but a node has room for one bundle
        (cpus(2, 2, 2), cpus(4, 4), 1),  # 2 CPUs are left, enough for one more agent only
        (cpus(1, 2, 1), cpus(2, 2), 1),  # the largest bundle is placed first
        (cpus(1, 1), cpus(0, 1, 4, 3), 4),
        (cpus(*[0.1] * 10), cpus(1), 1),  # exact, although a sum of floats is rounded
        (cpus(1), cpus(100), 9),
        (cpus(1), [], 0),
    ],
)
def test_cohorts_are_counted_by_placing_them(
    bundles: list[Amounts], nodes: list[Amounts], cohorts: int
) -> None:
    assert cohorts_that_fit(bundles, nodes, at_most=9) == cohorts


def test_scarce_resources_are_placed_first() -> None:
    nodes: list[Amounts] = [{"CPU": 2, "GPU": 1}, {"CPU": 2, "tpu": 1}, {"CPU": 2}]
    bundles: list[Amounts] = [{"CPU": 2}, {"CPU": 2, "tpu": 1}, {"CPU": 1, "GPU": 1}]
    assert cohorts_that_fit(bundles, nodes, at_most=9) == 1


def test_cohorts_that_ray_cannot_place_are_not_counted() -> None:
    """Ray puts the largest bundle on the emptiest node, where both others would have fitted."""
    assert cohorts_that_fit(cpus(3, 2, 2), cpus(4, 3), at_most=9) == 0


def test_agents_that_ask_for_nothing_share_one_bundle_per_node_with_cores() -> None:
    agents = [Resources(), Resources(cpus=2), Resources(), Resources(), Resources(gpus=1)]
    bundles, bundle_of = bundles_for(agents, [{"away": 1.0}, {"CPU": 8.0}, {"CPU": 1.0}])
    assert bundles == [{"CPU": 2}, {"GPU": 1}, {"CPU": 2 * LEAST_CPU}, {"CPU": LEAST_CPU}]
    assert bundle_of == [2, 0, 3, 2, 1]


def test_agents_get_a_bundle_to_wait_for_if_no_node_has_a_core() -> None:
    assert bundles_for([Resources()] * 3, []) == ([{"CPU": 3 * LEAST_CPU}], [0, 0, 0])
    assert bundles_for([Resources(gpus=1)], []) == ([{"GPU": 1}], [0])
