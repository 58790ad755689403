"""What is measured beside agents' returns: their consensus, expectations, silent units."""

from collections.abc import Callable, Sequence

import numpy as np

from fedhql.results.curves import Curve, Floats, Run
from fedhql.results.objectives import Estimate
from fedhql.results.tables import Table
from fedhql.storage.run_directory import Cell

POLICIES = ("agents after self-learning", "agents after the round", "consensus policy")
Score = Callable[[Curve], Floats]  # (N,)


def policies_table(run: Run, level: float) -> Table | None:
    """Return agents beside their consensus, arms down; None if only agents' returns are there."""
    if not run.consensus and not run.after_rounds:
        return None
    scores = {"last 10 %": Curve.recent_mean, "second half": Curve.second_half_mean}
    rows = [
        (
            run.label(arm),
            *(text for score in scores.values() for text in _policies(run, arm, score, level)),
        )
        for arm in run.ordered_arms
    ]
    header = ("arm", *(f"{policy}, {part}" for part in scores for policy in POLICIES))
    note = (
        "Means over the last 10 % or the second half of evaluations, over agents and then over "
        f"seeds, with {level:.0%} t-intervals. The consensus policy acts greedily in the centre of "
        "all agents' answers."
    )
    return Table("Agents and their consensus", header, rows, note=note)


def _policies(run: Run, arm: str, score: Score, level: float) -> list[str]:
    only_rounds = run.only_after_rounds and arm in run.after_rounds
    curves = (
        {} if only_rounds else run.arms[arm],
        run.after_rounds.get(arm, {}),
        run.consensus.get(arm, {}),
    )
    return [
        _text([float(score(curve).mean()) for curve in each.values()], level) for each in curves
    ]


def measures_table(run: Run, level: float) -> Table | None:
    """Return what agents expect and get, arms down; None if a run has not recorded it."""
    if not run.measures:
        return None
    rows = [(run.label(arm), *_measures(run, arm, level)) for arm in run.ordered_arms]
    header = (
        "arm",
        "return the agents expect",
        "return they get, discounted",
        "silent units",
    )
    note = (
        "Means over the last 10 % of evaluations, over agents and then over seeds, with "
        f"{level:.0%} t-intervals. An agent expects its largest action value at the start of an "
        "episode; if that is above the discounted return it gets, it overestimates. Silent units: "
        "the share of ReLU units that output 0 at the agent's last states."
    )
    return Table("Expected returns and silent units", header, rows, note=note)


def _measures(run: Run, arm: str, level: float) -> list[str]:
    measured = [
        run.measures[cell] for seed in run.arms[arm] if (cell := Cell(arm, seed)) in run.measures
    ]
    # An agent without ReLU units has none that could be silent.
    silent = [of.silent_units_N for of in measured if not _has_none(of.silent_units_N)]
    silent_S = [float(np.nanmean(of_N)) for of_N in silent]
    return [
        _text([float(of.start_values_N.mean()) for of in measured], level),
        _text([float(of.discounted_N.mean()) for of in measured], level),
        str(Estimate.of(silent_S, level).as_share()) if silent_S else "-",
    ]


def _text(values: Sequence[float], level: float) -> str:
    return str(Estimate.of(values, level)) if values else "-"


def _has_none(silent_units_N: Floats) -> bool:
    return bool(np.isnan(silent_units_N).all())
