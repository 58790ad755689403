"""Places for a cohort's agents on a cluster's nodes: what is reserved, and for how many cohorts."""

from collections.abc import Mapping, Sequence

from fedhql.cluster.resources import LEAST_CPU, Resources

Amounts = Mapping[str, float]  # by Ray's names of resources

RAYS_UNITS = 10_000  # in one of anything: Ray counts in whole units, so that sums are exact


def bundles_for(
    agents: Sequence[Resources], nodes: Sequence[Amounts]
) -> tuple[list[Amounts], list[int]]:
    """-> what to reserve, each on a single node, and which of it is each agent's.

    Who asks for something has a bundle of their own. The others share, as many bundles as there are
    nodes with cores: Ray puts those on different nodes. If each had its own, all but the first few
    would go to the one node with the most free cores.
    """
    bundles: list[Amounts] = [agent.demanded() for agent in agents if agent.demanded()]
    own, modest = len(bundles), sum(1 for agent in agents if not agent.demanded())
    shared = min(modest, max(1, sum(1 for node in nodes if node.get("CPU"))))
    bundles += [{"CPU": LEAST_CPU * len(range(n, modest, shared))} for n in range(shared)]
    of_asking, of_modest = iter(range(own)), (own + n % shared for n in range(modest))
    return bundles, [next(of_asking if agent.demanded() else of_modest) for agent in agents]


def cohorts_that_fit(bundles: Sequence[Amounts], nodes: Sequence[Amounts], at_most: int) -> int:
    """How many cohorts with these bundles fit on empty nodes, one cohort after the other."""
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
    """What is left, if everything wanted fits.

    Chosen as Ray does with SPREAD, from the largest on, for another choice would promise what Ray
    does not find: a node without any of them if there is one, and of those the emptiest.
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
    """Ray bundles GPUs first, then a node's own resources, then CPUs; of each the most first."""
    custom = sorted(item for item in bundle.items() if item[0] not in ("CPU", "GPU"))
    return bundle.get("GPU", 0), custom, bundle.get("CPU", 0)


def _share_left(bundle: dict[str, int], node: dict[str, int]) -> float:
    return sum((node[name] - amount) / node[name] for name, amount in bundle.items())


def _in_units(amounts: Amounts) -> dict[str, int]:
    units = {name: round(RAYS_UNITS * amount) for name, amount in amounts.items()}
    return {name: amount for name, amount in units.items() if amount}
