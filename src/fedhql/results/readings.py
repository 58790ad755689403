"""Readings of the paper beside each other: how far each is from what the paper states.

A reading is a choice of what the paper leaves open. Its runs are named EXPERIMENT--READING.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhql.results.curves import Floats, Run
from fedhql.results.tables import Table
from fedhql.results.verdicts import MET, NOT_MET, UNDECIDED, Verdict

SEPARATOR = "--"  # between the experiment and the reading in the name of a run
AFTER_ROUNDS = ", after rounds"
RESAMPLES = 1_000  # of the seeds
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


def equally_long(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of readings, those of one experiment cut to what all of them reached."""
    reached: dict[str, float] = {}
    of_readings = [
        (run, run.name.partition(SEPARATOR)[0])
        for run in runs
        if SEPARATOR in run.name and run.arms
    ]
    for run, experiment in of_readings:
        reached[experiment] = min(run.reached, reached.get(experiment, np.inf))
    return [run.until(int(reached[experiment])) for run, experiment in of_readings]


def nearest_first(verdicts: Verdicts) -> Verdicts:
    """Return the readings by distance; those that ran more of the experiments come first."""

    def key(reading: str) -> tuple[int, float, str]:
        found = [*_distances(verdicts[reading]).values()]
        return -len(found), float(np.mean(found)), reading

    return {reading: verdicts[reading] for reading in sorted(verdicts, key=key)}


def nearest_shares(verdicts: Verdicts, rng: np.random.Generator) -> dict[str, float]:
    """Return how often each reading is the nearest when seeds are drawn again (bootstrap).

    Only readings of the same experiments as the first are held against each other, with the same
    draws. Equally near ones share a draw.
    """
    ran = {reading: set(_evidence(of)) for reading, of in verdicts.items()}
    most = [reading for reading in verdicts if ran[reading] == ran[next(iter(verdicts))]]
    drawn: dict[tuple[str, int], Floats] = {}  # (experiment, S) -> (R, S) weights of the seeds

    def shortfalls(verdict: Verdict) -> Floats:
        """Return the shortfall of the worst quantity in each of R draws."""
        found = []
        for values_S in verdict.evidence.quantities.values() if verdict.evidence else ():
            S = len(values_S)
            if (verdict.experiment, S) not in drawn:
                drawn[verdict.experiment, S] = rng.multinomial(S, np.full(S, 1 / S), RESAMPLES) / S
            means_R = drawn[verdict.experiment, S] @ values_S
            found.append([verdict.range.shortfall(mean) for mean in means_R])
        return np.max(found, axis=0)

    distances_MR = np.array(
        [
            np.mean(
                [
                    np.mean([*map(shortfalls, of)], axis=0)
                    for of in _evidence(verdicts[each]).values()
                ],
                axis=0,
            )
            for each in most
        ]
    )
    nearest_MR = np.isclose(distances_MR, distances_MR.min(axis=0), rtol=0, atol=1e-12)
    shares_M = (nearest_MR / nearest_MR.sum(axis=0)).mean(axis=1)
    return dict(zip(most, shares_M.tolist(), strict=True))


def _evidence(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return experiment -> the verdicts on it that rest on a run."""
    found: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.evidence:
            found.setdefault(verdict.experiment, []).append(verdict)
    return found


def _distances(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the mean shortfall of each experiment that was run."""
    return {
        experiment: float(np.mean([each.evidence.shortfall for each in of if each.evidence]))
        for experiment, of in _evidence(verdicts).items()
    }


def readings_tables(verdicts: Verdicts, rng: np.random.Generator) -> list[Table]:
    """Return the distances of readings in their order, then each experiment's statements."""
    experiments = list(dict.fromkeys(each.experiment for of in verdicts.values() for each in of))
    nearest = nearest_shares(verdicts, rng)
    rows = []
    for reading, of in verdicts.items():
        by_experiment = _distances(of)
        rows.append(
            (
                reading,
                _number(float(np.mean([*by_experiment.values()]))),
                f"{nearest[reading]:.0%}" if reading in nearest else "-",
                *(_number(by_experiment.get(name)) for name in experiments),
                _counts(of),
            )
        )
    note = (
        "The distance is the mean shortfall of an experiment's statements: how far the mean over "
        "seeds is outside a statement's range, in units of the task's scale (CartPole 500, "
        "LunarLander 300, shares of agents 1); 0 where it is inside. Left: the mean over the "
        "experiments that were run. Statements about every λ are judged by the λ that were run. "
        "Runs of one experiment are cut where the shortest ends, and statements about more of the "
        "budget are judged there. So an agent that is said never to learn has had less time to do "
        "so. Nearest in: "
        f"the share of {RESAMPLES:,} draws of these seeds, with repetition, in which a reading is "
        "the nearest of those with the same experiments as the first."
    )
    header = ("reading", "distance", "nearest in", *experiments, "met, undecided, not met")
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
