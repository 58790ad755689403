"""Placement bundles for the agents of a cohort, and how many cohorts fit on the nodes."""

from collections.abc import Mapping, Sequence

from fedhql.cluster.resources import LEAST_CPU, Resources

Amounts = Mapping[str, float]  # by Ray's names of the resources

RAYS_UNITS = 10_000  # per 1.0 of a resource: Ray counts in whole units, so sums are exact


def bundles_for(
    agents: Sequence[Resources], nodes: Sequence[Amounts]
) -> tuple[list[Amounts], list[int]]:
    """Return the bundles to reserve, each on one node, and the index of each agent's bundle.

    An agent that asks for resources gets its own bundle. The other agents share as many bundles as
    there are nodes with cores, and Ray puts those on different nodes. If each had its own bundle,
    all but the first few would go to the one node with the most free cores.
    """
    bundles: list[Amounts] = [agent.demanded() for agent in agents if agent.demanded()]
    own, sharing = len(bundles), sum(1 for agent in agents if not agent.demanded())
    shared = min(sharing, max(1, sum(1 for node in nodes if node.get("CPU"))))
    bundles += [{"CPU": LEAST_CPU * len(range(n, sharing, shared))} for n in range(shared)]
    next_own, next_shared = iter(range(own)), (own + n % shared for n in range(sharing))
    return bundles, [next(next_own if agent.demanded() else next_shared) for agent in agents]


def cohorts_that_fit(bundles: Sequence[Amounts], nodes: Sequence[Amounts], at_most: int) -> int:
    """Return how many cohorts with these bundles fit on empty nodes, at most `at_most`."""
    free = [_in_units(node) for node in nodes]
    wanted = sorted((_in_units(bundle) for bundle in bundles), key=_scarcity, reverse=True)
    for cohorts in range(at_most):
        left = _after_one_more(wanted, free)
        if left is None:
            return cohorts
        free = left
    return at_most


def _after_one_more(
    wanted: Sequence[dict[str, int]], free: Sequence[dict[str, int]]
) -> list[dict[str, int]] | None:
    """Return what is left on the nodes after one more cohort, or None if it does not fit.

    Place the bundles as Ray's SPREAD strategy does: the largest first, each on the emptiest node,
    if possible one without a bundle of this cohort. Another order could promise cohorts that Ray
    cannot place.
    """
    left, used = [dict(node) for node in free], set[int]()
    for bundle in wanted:
        fitting = [n for n, node in enumerate(left) if fits(bundle, node)]
        if not fitting:
            return None
        unused = [n for n in fitting if n not in used]
        chosen = max(unused or fitting, key=lambda n: _share_left(bundle, left[n]))
        used.add(chosen)
        for name, amount in bundle.items():
            left[chosen][name] -= amount
    return left


def fits(bundle: Amounts, node: Amounts) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in bundle.items())


def _scarcity(bundle: dict[str, int]) -> tuple[int, list[tuple[str, int]], int]:
    """Return Ray's sort key for bundles: first GPUs, then custom resources, then CPUs."""
    custom = sorted(item for item in bundle.items() if item[0] not in ("CPU", "GPU"))
    return bundle.get("GPU", 0), custom, bundle.get("CPU", 0)


def _share_left(bundle: dict[str, int], node: dict[str, int]) -> float:
    return sum((node[name] - amount) / node[name] for name, amount in bundle.items())


def _in_units(amounts: Amounts) -> dict[str, int]:
    units = {name: round(RAYS_UNITS * amount) for name, amount in amounts.items()}
    return {name: amount for name, amount in units.items() if amount}
