"""What a result gives: tables, pictures, a page, policies."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

import fedhql
from fedhql.results.archive import write_archive
from fedhql.results.load import load_run
from tests.api.agents import BUDGET, ENV, QUICK, SavedAgent
from tests.known_mdps import ACTIONS, STATES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def result() -> fedhql.Result:
    """Return a study of three agents, one of which is a class of this function."""

    class Own(SavedAgent):
        pass

    agents = {"north": "tabular", "south": Own, "west": SavedAgent}
    return fedhql.study(agents, ENV, BUDGET, seeds=2, settings=QUICK, progress=False)


def test_the_summary_answers_and_lists_every_agent(result: fedhql.Result) -> None:
    first, table = result.summary().split("\n\n")
    assert first.startswith("FedHQL, λ = 1 is ")
    *lines, note = table.splitlines()
    assert note == "alone: the arm independent, in which every agent learns alone."
    assert re.split(r"  +", lines[1])[:3] == ["agent", "alone: best", "alone: last tenth"]
    assert [line.split()[0] for line in lines[2:]] == ["north", "south", "west", "mean"]
    best = result.curves["fedhql"][0].best[1, -1] + result.curves["fedhql"][1].best[1, -1]
    assert f"{best / 2:.4g}" in lines[3]
    assert len({len(line) for line in lines[1:]}) == 1  # columns are below each other


def test_a_federation_alone_has_a_summary_without_a_comparison() -> None:
    alone = fedhql.federate(["tabular"], ENV, BUDGET, settings=QUICK, progress=False)
    table, hint = alone.summary().split("\n\n")
    assert table.startswith("Mean return over 1 seed")
    assert hint == "one arm: fedhql.study compares with agents alone"


def test_a_row_for_every_evaluation(result: fedhql.Result) -> None:
    table = result.to_pandas()
    evaluations = len(result.curves["fedhql"][0].consumed_E)
    assert len(table) == 2 * evaluations * (3 + 4)  # the federated arm has the consensus, too
    rows = table[(table.arm == "fedhql") & (table.seed == 1) & (table.agent == "west")]
    curve = result.curves["fedhql"][1]
    np.testing.assert_array_equal(rows.mean_return, curve.returns_NE[2])
    np.testing.assert_array_equal(rows.best_mean_return, curve.best[2])
    np.testing.assert_array_equal(rows.budget_env_steps, curve.consumed_E)
    assert isinstance(table, pandas.DataFrame)


def test_rows_have_the_steps_and_the_moments_of_the_file() -> None:
    settings = QUICK | {"evaluation.moments": "both"}
    study = fedhql.study(["tabular", SavedAgent], ENV, BUDGET, settings=settings, progress=False)
    columns = ["arm", "agent", "own_env_steps", "after", "mean_return", "best_mean_return"]
    written = pandas.read_csv(study.path / "evaluations.csv")[columns]
    # A result has one curve of the consensus policy: the one after self-learning.
    expected = written[(written.agent != "consensus") | (written.after == "self-learning")]
    assert set(expected.after) == {"self-learning", "round"}
    rows, expected = (
        frame.sort_values(columns, ignore_index=True)
        for frame in (study.to_pandas()[columns], expected)
    )
    pandas.testing.assert_frame_equal(rows, expected)


def test_evaluations_after_rounds_alone_say_so() -> None:
    settings = QUICK | {"evaluation.moments": "round"}
    study = fedhql.study(["tabular"], ENV, BUDGET, settings=settings, progress=False)
    moments = study.to_pandas().groupby(["arm", "agent"])["after"].unique().map(list).to_dict()
    assert moments == {
        ("independent", "agent1"): ["self-learning"],
        ("fedhql", "agent1"): ["round"],
        ("fedhql", "consensus"): ["round"],
    }


def test_without_pandas_the_extra_is_named(
    result: fedhql.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedhql.FedHQLError, match=r"pip install 'fedhql\[pandas\]'"):
        result.to_pandas()


@pytest.mark.parametrize(("what", "panels"), [("mean", 2), ("agents", 3)])
def test_plot_draws_a_figure(result: fedhql.Result, what: str, panels: int) -> None:
    figure = result.plot(what)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == panels
    assert all(len(axes.lines) == 2 * 3 for axes in figure.axes)  # each arm: its mean, two seeds


def test_a_notebook_shows_the_figure(result: fedhql.Result) -> None:
    png = result.plot()._repr_png_()  # type: ignore[attr-defined]  # what IPython looks for
    assert png.startswith(b"\x89PNG")


def test_an_unknown_plot_is_refused(result: fedhql.Result) -> None:
    with pytest.raises(fedhql.FedHQLError, match="allowed: 'mean', 'agents'"):
        result.plot("everything")


@pytest.mark.parametrize("name", ["page.html", "page.md", "page"])
def test_report_writes_the_page(result: fedhql.Result, tmp_path: Path, name: str) -> None:
    page = result.report(tmp_path / name)
    assert page == tmp_path / "page.html"
    assert "FedHQL, λ = 1" in page.read_text()
    assert (tmp_path / "page.md").read_text().startswith("# FedHQL: run\n")


@pytest.mark.parametrize("level", [0, 1, 3])
def test_a_report_at_no_level_is_refused(
    result: fedhql.Result, tmp_path: Path, level: float
) -> None:
    with pytest.raises(fedhql.FedHQLError, match=f"level = {level}: allowed: between 0 and 1"):
        result.report(tmp_path / "page", level=level)


@pytest.mark.parametrize("agent", ["consensus", "north", "south", "west"])
def test_policies_act(result: fedhql.Result, agent: str) -> None:
    states = np.arange(STATES)
    best, last = result.policy(agent), result.policy(agent, arm="independent", seed=1, state="last")
    whose = "consensus of 3 agents" if agent == "consensus" else "one agent"
    for policy in (best, last):
        assert repr(policy) == f"Policy({whose})"
        values = policy.q_values(states)
        assert values.shape == (STATES, ACTIONS)
        np.testing.assert_array_equal(policy.act(states), values.argmax(axis=1))
    assert not np.array_equal(best.q_values(states), last.q_values(states))


def test_the_best_states_of_own_classes_are_played_again(result: fedhql.Result) -> None:
    for of_N in result.run.best_returns.values():
        assert np.isfinite(of_N).all()


def test_an_unknown_policy_is_refused(result: fedhql.Result) -> None:
    with pytest.raises(fedhql.FedHQLError, match="has no 'east'; allowed: north, south, west"):
        result.policy("east")


def test_an_archive_can_be_loaded(result: fedhql.Result, tmp_path: Path) -> None:
    write_archive(load_run(result.path), tmp_path / "kept")
    kept = fedhql.load(tmp_path / "kept")
    assert kept.finished
    assert kept.summary() == result.summary()
    assert len(kept.to_pandas()) == len(result.to_pandas())
    with pytest.raises(fedhql.FedHQLError, match="not an archive"):
        kept.policy()


def test_archives_are_finished_unless_their_pages_say_otherwise() -> None:
    archives = [found.parent for found in DOCS.rglob("manifest.json")]
    unfinished = {home for home in archives if not fedhql.load(home).finished}
    screens = ("n5-falling", "n5-sooner", "n5-untrained", "n10-falling")
    stopped = {DOCS / "plus" / "falling" / f"cartpole-{name}" for name in screens}
    with_fewer_seeds = {  # in some arms
        DOCS / "plus" / "leave-one-out" / name
        for name in ("cartpole-n5-sceptical", "cartpole-n10-sceptical", "lunarlander-n5-recalling")
    }
    assert unfinished == stopped | with_fewer_seeds


def test_where_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(fedhql.FedHQLError, match="holds no run of fedhql"):
        fedhql.load(tmp_path)
