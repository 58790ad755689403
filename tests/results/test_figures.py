from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from fedhql.results.curves import Run
from fedhql.results.figures import (
    agents_figure,
    draw_figures,
    exploration_figure,
    profile_figure,
    welfare_figure,
)
from fedhql.results.statistics import t_band
from fedhql.results.styles import (
    BEST,
    EACH,
    POINTS,
    Points,
    around_means,
    mean_and_band,
    seed_count,
    styles,
)
from tests.results.handmade import curve, learning_run, run_of

EVERY_ARM = ("independent", "fedhql", "exploration=0", "exploration=0.5", "exploration=3")


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def drawn(axes: Axes, name: str) -> list[float]:
    line = next(line for line in axes.lines if line.get_label() == name)
    return [float(y) for y in np.asarray(line.get_ydata())]


def written(runs: Sequence[Run], home: Path) -> dict[str, bytes]:
    paths = draw_figures(runs, home, rng())
    assert sorted(paths) == sorted(home.iterdir())
    return {path.name: path.read_bytes() for path in paths}


def test_figures_are_written_for_print_and_the_same_twice(tmp_path: Path) -> None:
    runs = [learning_run(agents=1, seeds=1, arms=["independent", "fedhql"])]
    first = written(runs, tmp_path / "first")
    # One λ has no sensitivity to show.
    names = ["agents.png", "agents.svg", "profile.png", "profile.svg", "welfare.png", "welfare.svg"]
    assert sorted(first) == names
    for name in first:
        if name.endswith(".png"):
            assert matplotlib.image.imread(tmp_path / "first" / name).shape[0] > 300
        else:
            assert b"</svg>" in first[name]
    assert written(runs, tmp_path / "second") == first


def test_figures_of_two_runs_of_different_sizes(tmp_path: Path) -> None:
    runs = [learning_run(agents=5), learning_run(agents=10, seeds=1, arms=["fedhql"])]
    assert {Path(name).stem for name in written(runs, tmp_path)} == {
        "agents",
        "exploration",
        "profile",
        "welfare",
    }


def test_no_evaluations_no_figures(tmp_path: Path) -> None:
    assert draw_figures([run_of({})], tmp_path / "figures", rng()) == []
    assert draw_figures([], tmp_path / "figures", rng()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("agents", [1, 5, 10])
def test_every_agent_has_a_panel(agents: int, seeds: int) -> None:
    figure = agents_figure([learning_run(agents=agents, seeds=seeds)], rng())
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [f"Agent{n}" for n in range(1, agents + 1)]
    for axes in panels:
        assert len(axes.lines) == 3
        assert len(axes.collections) == (3 if seeds > 1 else 0)  # one seed has no band


def test_two_seeds_are_drawn_one_by_one() -> None:
    run = learning_run(agents=1, seeds=2, arms=["independent", "fedhql"])
    for figure in welfare_figure([run], rng()), agents_figure([run], rng()):
        assert figure.get_supxlabel().endswith("\nthick lines: means; thin lines: single seeds")
        axes = figure.axes[0]
        assert len(axes.collections) == 0  # no band
        widths = [line.get_linewidth() for line in axes.lines]
        assert widths == [1.8, 0.7, 0.7] * 2  # of each arm: the mean, then both seeds
        shown = [line.get_ydata() for line in axes.lines[1:3]]
        np.testing.assert_array_equal(shown, [c.best[0] for c in run.arms["independent"].values()])
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert labels == ["DQN alone", "FedHQL, λ = 1"]


def test_captions_say_how_many_seeds_there_are_and_what_is_around_the_means() -> None:
    one, two, three = (learning_run(agents=1, seeds=seeds) for seeds in (1, 2, 3))
    mixed = run_of({"independent": one.arms["independent"], "fedhql": three.arms["fedhql"]})
    assert [*map(seed_count, (one, two, three, mixed, run_of({})))] == [
        "1 seed",
        "2 seeds",
        "3 seeds",
        "1 to 3 seeds",
        "0 seeds",
    ]
    assert around_means([one], "80%") == around_means([], "80%") == ""
    assert around_means([three, mixed], "80%") == "bands: 80%"
    thin = "thick lines: means; thin lines: single seeds"
    assert around_means([two, three], "80%") == f"bands: 80%; {thin}"
    for figure in (welfare_figure([two], rng()), profile_figure([two]), exploration_figure([two])):
        assert figure.axes[0].get_title().startswith("CartPole-v1, 1 agent, 2 seeds")


def test_runs_with_fewer_agents_leave_panels_empty() -> None:
    figure = agents_figure([learning_run(agents=7), learning_run(agents=1)], rng())
    assert len(figure.axes) == 3 * 5
    assert sum(axes.axison for axes in figure.axes) == 7 + 1


def test_agents_are_averaged_within_a_seed_and_then_seeds() -> None:
    seeds = {0: curve([10, 20], [5, 1], [7, 9]), 1: curve([10, 20], [0, 0], [0, 4])}
    best, each = welfare_figure([run_of({"fedhql": seeds})], rng()).axes
    assert best.get_title().endswith(BEST)
    assert each.get_title().endswith(EACH)
    # Seed 0: (5 + 7) / 2, then (5 + 9) / 2 of the best and (1 + 9) / 2 of each; seed 1: 0, 2.
    assert drawn(best, "FedHQL, λ = 1") == [3, 4.5]
    assert drawn(each, "FedHQL, λ = 1") == [3, 3.5]


def test_several_runs_stand_side_by_side() -> None:
    figure = welfare_figure([learning_run(agents=3), learning_run(agents=2)], rng())
    assert [axes.get_title() for axes in figure.axes] == [
        f"CartPole-v1, {agents} agents, 3 seeds\n{name}"
        for name in (BEST, EACH)
        for agents in (3, 2)
    ]


def test_sensitivity_to_exploration_by_hand() -> None:
    run = run_of(
        {
            "independent": {0: curve([20, 100], [1, 2])},
            "fedhql": {0: curve([20, 100], [3, 9])},
            "exploration=3": {0: curve([20, 100], [4, 8])},
            "exploration=0": {0: curve([20], [5])},  # under way
            "learning_rate=0.1": {0: curve([20, 100], [99, 99])},  # not about λ
        }
    )
    (axes,) = exploration_figure([run, learning_run(arms=["fedhql"])]).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "3"]
    bars = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    means = [np.asarray(bar.lines[0].get_xydata()).tolist() for bar in bars]
    assert means == [[[0, 5], [1, 3], [2, 4]], [[1, 9], [2, 8]]]
    assert drawn(axes, "alone, 20%") == [1, 1]
    assert drawn(axes, "alone, 100%") == [2, 2]


def test_a_profile_is_of_agents_and_seeds_that_have_come_so_far() -> None:
    seeds = {0: curve([20, 100], [0, 100], [50, 50]), 1: curve([20], [100], [100])}
    early, late = profile_figure([run_of({"fedhql": seeds})]).axes
    assert drawn(early, "FedHQL, λ = 1")[1] == 0.75  # 0, 50, 100 and 100 just above 0
    assert drawn(early, "FedHQL, λ = 1")[-1] == 0.5
    assert drawn(late, "FedHQL, λ = 1")[-1] == 0.5  # of seed 0 alone: 100 and 50


FIGURES: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "welfare": lambda runs: welfare_figure(runs, rng()),
    "agents": lambda runs: agents_figure(runs, rng()),
    "exploration": exploration_figure,
    "profile": profile_figure,
}


@pytest.mark.parametrize("name", FIGURES)
def test_words_are_not_cut_off(name: str) -> None:
    figure = FIGURES[name]([learning_run(agents=1, seeds=1, arms=EVERY_ARM)])
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    page = figure.bbox
    for words in (figure.legends[0], *figure.texts):
        found = words.get_window_extent()
        assert page.x0 <= found.x0
        assert found.x1 <= page.x1


def test_a_label_has_one_style_in_all_runs() -> None:
    runs = [learning_run(arms=["independent", "fedhql"]), learning_run(arms=EVERY_ARM)]
    chosen = styles(runs)
    assert len(set(map(str, chosen.values()))) == len(chosen) == 5
    for figure in FIGURES["welfare"](runs), FIGURES["profile"](runs), FIGURES["agents"](runs):
        for axes in figure.axes:
            for line in axes.lines:
                assert line.get_color() == chosen[str(line.get_label())][0]


def points(x: Sequence[float], y: Sequence[float]) -> Points:
    return np.array(x, dtype=float), np.array(y, dtype=float)


def test_seeds_are_averaged_where_all_have_data() -> None:
    seeds = [points([0, 2, 4], [0, 20, 40]), points([1, 3], [100, 300])]
    x, mean, low, high = mean_and_band(seeds, partial(t_band, level=0.5))
    assert x.tolist() == [1, 2, 3]
    assert mean.tolist() == [(10 + 100) / 2, (20 + 200) / 2, (30 + 300) / 2]
    # Of two seeds, the t-interval at 50 % reaches from one to the other.
    assert low == pytest.approx([10, 20, 30])
    assert high == pytest.approx([100, 200, 300])


def test_a_long_curve_is_drawn_at_fewer_points() -> None:
    x, mean, _, _ = mean_and_band([points(range(1001), range(1001))], t_band)
    assert len(x) == POINTS
    assert (x[0], x[-1]) == (0, 1000)
    assert mean == pytest.approx(x)
