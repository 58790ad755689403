from contextlib import closing
from pathlib import Path

import matplotlib.image
import pytest

from fedhql.results.figures import draw_figures
from fedhql.results.records import EvaluationRow, RecordFile
from fedhql.results.run_directory import RunDirectory


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("agents", [1, 5, 10])
def test_curves_are_drawn_for_any_number_of_agents_and_seeds(
    agents: int, seeds: int, tmp_path: Path
) -> None:
    directory = RunDirectory(tmp_path)
    with closing(RecordFile(directory.evaluations, EvaluationRow)) as file:
        for arm in ("independent", "fedhql"):
            for seed in range(seeds):
                for step in range(1, 5 + seed):
                    file.append(
                        EvaluationRow(arm, seed, f"agent{n}", step, step + seed / 7, 1.0 * n, 2.0)
                        for n in range(agents)
                    )
    for path in draw_figures(directory, "title"):
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[0] > 300
        assert pixels.std() > 0.01  # not a blank page
    assert sorted(p.name for p in directory.figures.iterdir()) == ["agents.png", "welfare.png"]


def test_no_evaluations_no_figures(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with closing(RecordFile(directory.evaluations, EvaluationRow)):
        pass
    assert draw_figures(directory, "title") == []
