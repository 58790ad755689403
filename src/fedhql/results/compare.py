"""Runs side by side: the same arms at the same consumption, and what else differs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedhql.results.curves import Curve, Run
from fedhql.results.objectives import Estimate
from fedhql.results.statistics import (
    holm,
    probability_of_improvement,
    t_p_above,
    welch_interval,
)
from fedhql.results.tables import Table
from fedhql.storage.arm_names import label

EQUIVALENCE_LEVEL = 0.9  # of the interval: two one-sided tests, each with an error rate of 5 %


def compare_tables(runs: Sequence[Run], level: float, margin: float | None = None) -> list[Table]:
    """Return the runs side by side; with a margin, also whether they are equivalent."""
    consumed = min((run.reached for run in runs if run.arms), default=0.0)
    arms = list(dict.fromkeys(arm for run in runs for arm in run.ordered_arms))
    equivalence = [] if margin is None else [_equivalence(runs, arms, consumed, margin)]
    scores = _scores(runs, arms, consumed, level)
    return [scores, *_by_seed(runs, arms, consumed, level), *equivalence, _settings(runs)]


def _scores(runs: Sequence[Run], arms: Sequence[str], consumed: float, level: float) -> Table:
    first = {arm: _at(runs[0], arm, consumed)[0] for arm in arms}
    rows = []
    for n, (name, run) in enumerate(zip(_names(runs), runs, strict=True)):
        cells = []
        for arm in arms:
            best, recent = _at(run, arm, consumed)
            cell = f"{Estimate.of(best, level)} / {recent.mean():.4g}" if len(best) else "-"
            if n > 0 and len(best) * len(first[arm]):
                cell += f" ({probability_of_improvement(best, first[arm]):.2f})"
            cells.append(cell)
        rows.append((name, *cells))
    note = (
        f"Entries: max mean return [{level:.0%} t-interval over seeds] / mean of the last 10 % of "
        f"evaluations. Both are means over agents at {consumed:,.0f} env steps per agent, which "
        "all runs have consumed. In round brackets: the probability that a seed of this run is "
        f"above a seed of {_names(runs)[0]}. -: not run."
    )
    return Table("Runs side by side", ("run", *map(label, arms)), rows, note=note)


def _by_seed(
    runs: Sequence[Run], arms: Sequence[str], consumed: float, level: float
) -> list[Table]:
    """Return a table of differences from the first run, if another one has some of its seeds."""
    first_name, *names = _names(runs)
    found: dict[tuple[str, str], Any] = {}
    for name, run in zip(names, runs[1:], strict=True):
        for arm in arms:
            ours, theirs = (_curves(each, arm, consumed) for each in (run, runs[0]))
            values_3S = np.array(
                [
                    [of(ours[s]).mean() - of(theirs[s]).mean() for s in ours if s in theirs]
                    for of in (Curve.max_mean, Curve.recent_mean, Curve.second_half_mean)
                ]
            )
            if values_3S.shape[1] > 1 and values_3S.any() and np.isfinite(values_3S).all():
                found[name, label(arm)] = values_3S
    if not found:
        return []
    p_R3 = holm([_p(of_S) for of_3S in found.values() for of_S in of_3S]).reshape(-1, 3)
    rows = []
    for (of, values_3S), p_3 in zip(found.items(), p_R3, strict=True):
        stars = ("*" if p <= 1 - level else "" for p in p_3)
        told = (f"{Estimate.of(v, level)}{star}" for v, star in zip(values_3S, stars, strict=True))
        rows.append((*of, *told, str(values_3S.shape[1])))
    note = (
        f"Mean over agents less that of {first_name} with the same seed, at {consumed:,.0f} env "
        f"steps per agent, with {level:.0%} t-intervals. *: with Holm's correction over this "
        f"table, Student's p is at most {1 - level:.2g}. Left out: arms that are equal in every "
        "seed, share fewer than two seeds, or have returns that are not finite. A max mean return "
        "grows with the number of evaluations, so compare it where that is equal."
    )
    header = ("run", "arm", "max mean return", "mean of the last 10 %", "second half", "seeds")
    return [Table(f"Differences from {first_name}, seed by seed", header, rows, note=note, words=2)]


def _p(differences_S: Any) -> float:
    """Return the two-sided p of Student's test; of the sign test if all differences are equal."""
    return min(2 * min(t_p_above(sign * differences_S, 0) for sign in (1, -1)), 1.0)


def _equivalence(runs: Sequence[Run], arms: Sequence[str], consumed: float, margin: float) -> Table:
    first_name, *names = _names(runs)
    rows = []
    for name, run in zip(names, runs[1:], strict=True):
        for arm in arms:
            (ours, _), (theirs, _) = (_at(each, arm, consumed) for each in (run, runs[0]))
            if not len(ours) * len(theirs):
                continue
            low, high = welch_interval(ours, theirs, EQUIVALENCE_LEVEL)
            verdict = "undecided"
            if -margin < low and high < margin:
                verdict = "equivalent"
            elif high < -margin or margin < low:
                verdict = "different"
            told = f"{ours.mean() - theirs.mean():.4g} [{low:.4g}, {high:.4g}]"
            rows.append((name, label(arm), verdict, told, f"{len(ours)} and {len(theirs)}"))
    note = (
        f"Differences of the max mean return from {first_name}, mean over agents, at "
        f"{consumed:,.0f} env steps per agent, with Welch's {EQUIVALENCE_LEVEL:.0%} interval. "
        f"Equivalent: the interval is inside ±{margin:g}. Different: it is wholly outside. "
        "Otherwise undecided. The verdicts are not corrected for their number."
    )
    header = ("run", "arm", "verdict", "difference", "seeds")
    return Table(f"Equivalent within {margin:g}", header, rows, note=note, words=3)


def _at(run: Run, arm: str, consumed: float) -> tuple[Any, Any]:
    """Of each seed, (S,): the best and the recent mean over agents."""
    there = _curves(run, arm, consumed).values()
    best = np.array([curve.max_mean().mean() for curve in there])
    return best, np.array([curve.recent_mean().mean() for curve in there])


def _curves(run: Run, arm: str, consumed: float) -> dict[int, Curve]:
    """Return seed -> what had been seen when so much was consumed."""
    parts = {seed: curve.until(consumed) for seed, curve in run.arms.get(arm, {}).items()}
    return {seed: part for seed, part in parts.items() if part is not None}


def _settings(runs: Sequence[Run]) -> Table:
    first, *others = (dict(_flattened(run.settings)) for run in runs)
    first_name, *names = _names(runs)
    rows = [(name, _differences(first, other)) for name, other in zip(names, others, strict=True)]
    note = "-: a run without this setting."
    header = ("run", f"{first_name} → this run")
    return Table("Settings that differ", header, rows, words=2, note=note)


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What differs in every agent alike is said once."""
    differing: dict[tuple[str, str], list[str]] = {}
    for key in dict.fromkeys([*first, *other]):
        pair = (str(first.get(key, "-")), str(other.get(key, "-")))
        if pair[0] != pair[1]:
            section, _, rest = key.partition(".")
            number, _, setting = rest.partition(".")
            of_agent = section == "agents"
            place = (f"agents.{setting}" if of_agent else key, f"{pair[0]} → {pair[1]}")
            differing.setdefault(place, []).append(number if of_agent else "")
    agents = len({key.split(".")[1] for key in (*first, *other) if key.startswith("agents.")})
    told = []
    for (key, change), numbers in differing.items():
        if key.startswith("agents.") and len(numbers) < agents:
            key = f"agents.{','.join(numbers)}.{key.removeprefix('agents.')}"
        told.append(f"{key}: {change}")
    return "; ".join(told) or "none"


def _names(runs: Sequence[Run]) -> list[str]:
    """Two runs may be called the same."""
    names = [run.name for run in runs]
    return [f"{n + 1}. {name}" if names.count(name) > 1 else name for n, name in enumerate(names)]


def _flattened(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for number, each in enumerate(value, start=1):
                yield from _flattened(each, f"{prefix}{key}.{number}.")
        else:
            yield f"{prefix}{key}", value
