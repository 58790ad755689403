"""Runs side by side: the same arms at the same consumption, and what else differs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.objectives import Estimate
from fedhql.results.statistics import probability_of_improvement
from fedhql.results.tables import Table


def compare_tables(runs: Sequence[Run], rng: np.random.Generator, level: float) -> list[Table]:
    return [_scores(runs, rng, level), _settings(runs)]


def _scores(runs: Sequence[Run], rng: np.random.Generator, level: float) -> Table:
    consumed = min(
        (
            float(curve.consumed_E[-1])
            for run in runs
            for seeds in run.arms.values()
            for curve in seeds.values()
        ),
        default=0.0,
    )
    names = _names(runs)
    rows = []
    for arm in dict.fromkeys(arm for run in runs for arm in run.ordered_arms):
        scores = [_at(run, arm, consumed) for run in runs]
        cells = [
            f"{Estimate.of(best, rng, level)} / {recent.mean():.4g}" if len(best) else "-"
            for best, recent in scores
        ]
        first, last = scores[0][0], scores[-1][0]
        better = f"{probability_of_improvement(last, first):.2f}" if len(first) * len(last) else "-"
        rows.append((arm, *cells, better))
    header = ("arm", *names, f"P({names[-1]} better than {names[0]})")
    note = (
        f"Max mean return [{level:.0%} bootstrap interval over seeds] / mean of the last 10 %, "
        f"mean over agents, at {consumed:,.0f} env steps per agent, which all have consumed."
    )
    return Table("Runs side by side", header, rows, note=note)


def _at(run: Run, arm: str, consumed: float) -> tuple[Any, Any]:
    """Of each seed, (S,): the best and the recent mean over agents."""
    parts = [curve.until(consumed) for curve in run.arms.get(arm, {}).values()]
    there = [part for part in parts if part is not None]
    best = np.array([part.max_mean().mean() for part in there])
    return best, np.array([part.recent_mean().mean() for part in there])


def _settings(runs: Sequence[Run]) -> Table:
    flat = [dict(_flattened(run.settings)) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [
        (key, *(str(each.get(key, "-")) for each in flat))
        for key in keys
        if len({str(each.get(key)) for each in flat}) > 1
    ]
    header = ("setting", *_names(runs))
    return Table("Settings that differ", header, rows, words=len(header))


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
