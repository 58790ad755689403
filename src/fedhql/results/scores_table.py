"""The table of each arm at the end of what it has consumed."""

import numpy as np

from fedhql.results.answer import gains
from fedhql.results.curves import Run
from fedhql.results.objectives import Estimate, digits_of
from fedhql.results.statistics import interquartile_mean, probability_of_improvement
from fedhql.results.tables import Table, over_alone
from fedhql.storage.arm_names import INDEPENDENT
from fedhql.storage.run_directory import Cell


def scores_table(run: Run, level: float) -> Table:
    """Each arm at the end of what it has consumed: the paper's metric, and what it hides."""
    gain_of = {gain.arm: gain for gain in gains(run, level)}
    rows = []
    for arm in run.ordered_arms:
        curves = run.arms[arm]
        per_seed = {
            "max mean": [float(c.max_mean().mean()) for c in curves.values()],
            "recent": [float(c.recent_mean().mean()) for c in curves.values()],
            "area": [float(c.area().mean()) for c in curves.values()],
        }
        alone = [float(c.max_mean().mean()) for c in run.arms.get(INDEPENDENT, {}).values()]
        better = (
            f"{probability_of_improvement(per_seed['max mean'], alone):.2f}"
            if alone and arm != INDEPENDENT
            else "-"
        )
        middle, gain = interquartile_mean(per_seed["max mean"]), gain_of.get(arm)
        best, recent = (gain.best, gain.recent) if gain else (None, None)
        rows.append(
            (
                run.label(arm),
                str(len(curves)),
                f"{Estimate.of(per_seed['max mean'], level)}{over_alone(best)}",
                f"{middle:{digits_of(abs(middle))}}",
                better,
                _again(run, arm, level),
                f"{Estimate.of(per_seed['recent'], level)}{over_alone(recent)}",
                str(Estimate.of(per_seed["area"], level)),
            )
        )
    header = (
        "arm",
        "seeds",
        "max mean return",
        "its IQM",
        "P(better than alone)",
        "best state re-evaluated",
        "mean of the last 10 %",
        "area under the curve",
    )
    note = (
        f"Mean over agents within a seed, then over seeds, with {level:.0%} t-intervals. "
        "In round brackets: the gain over alone, seed by seed, at equal consumption. The max mean "
        "return is the largest of many noisy means, so it is biased upward. The best state of each "
        "agent, played in fresh episodes, shows by how much. IQM: the mean without the lowest and "
        "the highest quarter of seeds. P(better than alone): the probability that a seed of this "
        "arm is above a seed of alone. Area under the curve: the mean return on the way. "
        "docs/results.md in fedhql's sources says how we judge."
    )
    return Table("At the end", header, rows, note=note)


def _again(run: Run, arm: str, level: float) -> str:
    """Return the best states' returns in fresh episodes, and of how many agents if not of all."""
    cells = [Cell(arm, seed) for seed in run.arms[arm]]
    kept = [run.best_returns[cell] for cell in cells if cell in run.best_returns]
    if not kept:
        return "-"
    returns_SN = np.array(kept)
    count, N = int(np.isfinite(returns_SN).any(axis=0).sum()), len(run.agents)
    of_some = f" ({count} of {N} agents)" if count < N else ""
    return f"{Estimate.of(np.nanmean(returns_SN, axis=1), level)}{of_some}"
