"""What is measured beside the returns: the consensus policy, expectations, silent units."""

from collections.abc import Iterable

import numpy as np

from fedhql.results.curves import Curve, Run
from fedhql.results.objectives import Estimate
from fedhql.results.tables import Table
from fedhql.storage.run_directory import Cell

HEADER = (
    "arm",
    "agents after self-learning",
    "agents after the round",
    "consensus policy",
    "return the agents expect",
    "return they get, discounted",
    "silent units",
)


def measures_table(run: Run, level: float) -> Table | None:
    """Return the table, arms down; None if a run has recorded none of it."""
    if not run.measures and not run.consensus:
        return None
    rows = [(run.label(arm), *_cells(run, arm, level)) for arm in run.ordered_arms]
    note = (
        "Means over the last 10 % of evaluations, over agents and then over seeds, with "
        f"{level:.0%} t-intervals. The consensus policy acts greedily in the centre of all agents' "
        "answers. An agent expects its largest action value at the start of an episode; if that is "
        "above the discounted return it gets, it overestimates. Silent units: the share of ReLU "
        "units that output 0 at the agent's last states."
    )
    return Table("Beside the returns", HEADER, rows, note=note)


def _cells(run: Run, arm: str, level: float) -> list[str]:
    measured = [
        run.measures[cell] for seed in run.arms[arm] if (cell := Cell(arm, seed)) in run.measures
    ]
    only_rounds = run.only_after_rounds and arm in run.after_rounds
    by_seed = (
        [] if only_rounds else _recent(run.arms[arm].values()),
        _recent(run.after_rounds.get(arm, {}).values()),
        _recent(run.consensus.get(arm, {}).values()),
        [float(of.start_values_N.mean()) for of in measured],
        [float(of.discounted_N.mean()) for of in measured],
        # An agent without ReLU units has none that could be silent.
        [
            float(np.nanmean(of.silent_units_N))
            for of in measured
            if not _has_none(of.silent_units_N)
        ],
    )
    return [str(Estimate.of(values, level)) if values else "-" for values in by_seed]


def _recent(curves: Iterable[Curve]) -> list[float]:
    return [float(curve.recent_mean().mean()) for curve in curves]


def _has_none(silent_units_N: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    return bool(np.isnan(silent_units_N).all())
