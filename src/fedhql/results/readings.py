"""Readings of the paper beside each other: how far each is from what the paper states.

A reading is a choice of what the paper leaves open. Its runs are named EXPERIMENT--READING.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.tables import Table
from fedhql.results.verdicts import MET, NOT_MET, UNDECIDED, Verdict, distance

SEPARATOR = "--"  # between the experiment and the reading in the name of a run
AFTER_ROUNDS = ", after rounds"
Verdicts = Mapping[str, Sequence[Verdict]]  # of each reading


def by_reading(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return reading -> its runs; "" has the runs that are not named as a reading's.

    A reading whose federated arms were also evaluated after rounds is a second one there.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        reading = run.name.partition(SEPARATOR)[2]
        found.setdefault(reading, []).append(run)
        if reading and run.after_rounds and not run.only_after_rounds:
            found.setdefault(reading + AFTER_ROUNDS, []).append(run.after_round())
    return found


def nearest_first(verdicts: Verdicts) -> Verdicts:
    """Return the readings by distance; those that ran more of the experiments come first."""

    def key(reading: str) -> tuple[int, float, str]:
        found = [each for each in _distances(verdicts[reading]).values() if each is not None]
        return -len(found), float(np.mean(found)), reading

    return {reading: verdicts[reading] for reading in sorted(verdicts, key=key)}


def _distances(verdicts: Sequence[Verdict]) -> dict[str, float | None]:
    experiments = dict.fromkeys(each.experiment for each in verdicts)
    return {
        name: distance([each for each in verdicts if each.experiment == name])
        for name in experiments
    }


def readings_tables(verdicts: Verdicts) -> list[Table]:
    """Return the distances of readings in their order, then each experiment's statements."""
    experiments = list(dict.fromkeys(each.experiment for of in verdicts.values() for each in of))
    rows = []
    for reading, of in verdicts.items():
        by_experiment = _distances(of)
        run = [each for each in by_experiment.values() if each is not None]
        rows.append(
            (
                reading,
                _number(float(np.mean(run))),
                *(_number(by_experiment.get(name)) for name in experiments),
                _counts(of),
            )
        )
    note = (
        "The distance is the mean shortfall of an experiment's statements: how far the mean over "
        "seeds is outside a statement's range, in units of the task's scale (CartPole 500, "
        "LunarLander 300, shares of agents 1); 0 where it is inside. Left: the mean over the "
        "experiments that were run. Statements about every λ are judged by the λ that were run, "
        "and those about more of the budget than was run at the end of the run. There, an agent "
        "that is said never to learn has had less time to do so."
    )
    header = ("reading", "distance", *experiments, "met, undecided, not met")
    return [
        Table("Readings of the paper", header, rows, note=note),
        *(_statements_table(name, verdicts) for name in experiments),
    ]


def _statements_table(experiment: str, verdicts: Verdicts) -> Table:
    found = {
        reading: {each.statement: each for each in of if each.experiment == experiment}
        for reading, of in verdicts.items()
    }
    statements = list(dict.fromkeys(text for of in found.values() for text in of))
    rows = [
        (reading, *(_cell(of.get(text)) for text in statements))
        for reading, of in found.items()
        if any(each.evidence for each in of.values())
    ]
    return Table(
        f"Readings of the paper, {experiment}",
        ("reading", *statements),
        rows,
        note="In brackets the shortfall.",
    )


def _cell(verdict: Verdict | None) -> str:
    if verdict is None or verdict.evidence is None:
        return "-"
    return f"{verdict.status} ({verdict.evidence.shortfall:.2f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(verdicts: Sequence[Verdict]) -> str:
    statuses = [verdict.status for verdict in verdicts]
    return ", ".join(str(statuses.count(status)) for status in (MET, UNDECIDED, NOT_MET))
