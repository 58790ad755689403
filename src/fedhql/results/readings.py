"""Readings of the paper beside each other: how far each is from what the paper states.

A reading is a choice of what the paper leaves open. Its runs are named EXPERIMENT--READING.
"""

from collections.abc import Mapping, Sequence

from fedhql.results.curves import Run
from fedhql.results.tables import Table
from fedhql.results.verdicts import MET, NOT_MET, UNDECIDED, Verdict, distance

SEPARATOR = "--"  # between the experiment and the reading in the name of a run


def by_reading(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return reading -> its runs; "" has the runs that are not named as a reading's."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.name.partition(SEPARATOR)[2], []).append(run)
    return found


def readings_table(verdicts: Mapping[str, Sequence[Verdict]]) -> Table:
    """Return statements down, readings across, the nearest first, with distances above."""
    keys = list(dict.fromkeys(_key(verdict) for of in verdicts.values() for verdict in of))
    found = {name: {_key(verdict): verdict for verdict in of} for name, of in verdicts.items()}
    run_by_all = [
        key for key in keys if all(key in of and of[key].evidence for of in found.values())
    ]
    common = {name: distance([of[key] for key in run_by_all]) for name, of in found.items()}
    names = sorted(found, key=lambda name: (common[name] is None, common[name], name))
    statements = [
        (
            experiment,
            statement,
            *(_cell(found[name].get((experiment, statement))) for name in names),
        )
        for experiment, statement in keys
    ]
    rows = [
        ("all", "distance: mean shortfall", *(_number(distance(verdicts[name])) for name in names)),
        (
            "all",
            f"the same over the {len(run_by_all)} statements that all readings ran",
            *(_number(common[name]) for name in names),
        ),
        ("all", "met, undecided, not met", *(_counts(verdicts[name]) for name in names)),
        *statements,
    ]
    note = (
        "In brackets the shortfall: how far the mean over seeds is outside the statement's "
        "range, in units of the task's scale (CartPole 500, LunarLander 300, shares of agents 1); "
        "0 where it is inside. Compare readings by the statements that all of them ran."
    )
    header = ("experiment", "the paper's statement", *names)
    return Table("Readings of the paper", header, rows, words=2, note=note)


def _key(verdict: Verdict) -> tuple[str, str]:
    return verdict.experiment, verdict.statement


def _cell(verdict: Verdict | None) -> str:
    if verdict is None or verdict.evidence is None:
        return "-"
    return f"{verdict.status} ({verdict.evidence.shortfall:.2f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(verdicts: Sequence[Verdict]) -> str:
    statuses = [verdict.status for verdict in verdicts]
    return ", ".join(str(statuses.count(status)) for status in (MET, UNDECIDED, NOT_MET))
