from contextlib import closing
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from fedhql.results.figures import (
    Points,
    _draw,
    _mean_curve,
    _mean_over_seeds,
    best,
    draw_figures,
    each,
)
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
    assert sorted(p.name for p in directory.figures.iterdir()) == ["agents.png", "welfare.png"]


def points(x: list[float], y: list[float]) -> Points:
    return np.array(x, dtype=float), np.array(y, dtype=float)


def test_agents_are_averaged_within_a_seed() -> None:
    rows = [
        [EvaluationRow("fedhql", 0, agent, step, 1.5 * step, value * step, 99.0) for step in (1, 2)]
        for agent, value in (("agent1", 2.0), ("agent2", 4.0))
    ]
    x, y = _mean_curve(rows, each)
    assert x.tolist() == [1.5, 3.0]
    assert y.tolist() == [3.0, 6.0]
    assert _mean_curve(rows, best)[1].tolist() == [99.0, 99.0]


def test_seeds_are_averaged_where_all_have_data() -> None:
    x, y = _mean_over_seeds([points([0, 2, 4], [0, 20, 40]), points([1, 3], [100, 300])])
    assert x.tolist() == [1, 2, 3]
    assert y.tolist() == [(10 + 100) / 2, (20 + 200) / 2, (30 + 300) / 2]


def test_every_seed_and_their_mean_are_drawn() -> None:
    axes = Figure().subplots()
    _draw(axes, "FedHQL", ("#0072B2", "-"), [points([0, 1], [0, 1]), points([0, 1], [2, 3])])
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [
        [0, 1],
        [2, 3],
        [1, 2],
    ]


def test_no_evaluations_no_figures(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with closing(RecordFile(directory.evaluations, EvaluationRow)):
        pass
    assert draw_figures(directory, "title") == []
