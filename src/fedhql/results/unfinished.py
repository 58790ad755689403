"""The cells of a run that have not consumed their budget."""

from fedhql.results.curves import Run
from fedhql.results.objectives import curves_until
from fedhql.storage.run_directory import Cell


def unfinished_cells(run: Run) -> list[Cell]:
    arms, seeds = run.manifest["arms"], run.manifest["seeds"]
    finished = {arm: curves_until(run, arm, run.budget) for arm in arms}
    return [Cell(arm, seed) for arm in arms for seed in seeds if seed not in finished[arm]]
