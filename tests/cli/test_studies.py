"""Suites, reports and comparisons, as a new user asks for them."""

import json
import os
import shutil
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedhql.cli.display import print_table
from fedhql.results.tables import Table
from fedhql.storage.records import EvaluationRow, read_rows
from tests.cli.running import TABULAR, command, fedhql, succeed, told_command, write_file
from tests.cli.test_resume import assert_same_records, kill, start, wait_for_rows, wait_until

SETTINGS = (
    "agents.learning_starts=200",
    *("agents.hidden=[8]", "agents.activation=relu"),  # one program for all, soon compiled
    "federation.self_learning_env_steps=250",
    "evaluation.interval_env_steps=250",
    "evaluation.best_episodes=3",
)
SUITE = (
    *("suite", "cartpole-n5", "--budget-fraction", "0.0025"),
    *("--arm", "independent", "--arm", "fedhql", "--seeds", "0,1", "--jobs", "1"),
    *(part for setting in SETTINGS for part in ("--set", setting)),
)
CHANGES_WITH_EVERY_CALL = {"manifest.json", "report.html", "report.md"}  # they tell the time


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms with two seeds, undisturbed."""
    out = tmp_path_factory.mktemp("suite") / "whole"
    done = fedhql(*SUITE, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Objective 1, system welfare" in done.stdout
    assert f"report: {out / 'report.html'}" in done.stdout
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """That differ in λ and in nothing else."""
    home = tmp_path_factory.mktemp("runs")
    file = write_file(home, TABULAR.format(budget=900))
    both = ("run", file, "--seeds", "0,1", "--set", "evaluation.best_episodes=3")
    succeed(*both, "--out", home / "first")
    succeed(*both, "--out", home / "second", "--set", "federation.exploration=3")
    return home / "first", home / "second"


def test_a_suite_leaves_its_runs_and_a_report(suite: Path) -> None:
    run = suite / "cartpole-n5"
    assert json.loads((run / "summary.json").read_text())["finished"] is True
    rows = read_rows(run / "evaluations.csv", EvaluationRow)
    cells = dict.fromkeys((row.arm, row.seed) for row in rows)
    assert list(cells) == [(arm, seed) for arm in ("independent", "fedhql") for seed in (0, 1)]
    alone = [row for row in rows if (row.arm, row.seed, row.agent) == ("independent", 1, "agent5")]
    assert [row.own_env_steps for row in alone] == list(range(250, 5_001, 250))
    for arm, seed in cells:
        played = json.loads((run / "cells" / arm / f"seed{seed}" / "best_returns.json").read_text())
        assert list(played) == ["agent1", "agent2", "agent3", "agent4", "agent5"]
    assert (run / "figures" / "welfare.png").is_file()
    assert (suite / "figures" / "welfare.png").is_file()
    report = (suite / "report.md").read_text()
    assert "## cartpole-n5: CartPole-v1, 5 agents" in report
    assert "Budget 5,000 env steps per agent; seeds 0, 1; engine compiled;" in report
    assert "95% t-intervals" in report
    assert "cartpole-n5" in (suite / "report.html").read_text()


def test_a_suite_that_was_killed_goes_on(suite: Path, tmp_path: Path) -> None:
    process = start(*SUITE, "--out", tmp_path)
    assert wait_for_rows(tmp_path / "cartpole-n5", 60, process)
    assert process.poll() is None, "finished before it was killed: the test proves nothing"
    kill(process)
    assert not (tmp_path / "report.md").exists()
    assert list(tmp_path.glob("cartpole-n5/grids/*/round-*"))
    succeed(*SUITE, "--out", tmp_path)
    assert_same_records(tmp_path / "cartpole-n5", suite / "cartpole-n5")
    assert (tmp_path / "report.md").exists()


def files(home: Path) -> dict[str, bytes]:
    found = (path for path in home.rglob("*") if path.is_file())
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in found
        if path.name not in CHANGES_WITH_EVERY_CALL
    }


def test_a_suite_that_is_finished_does_nothing_more(suite: Path) -> None:
    result = suite / "cartpole-n5" / "cells" / "fedhql" / "seed1" / "result.json"
    before, written = files(suite), result.stat().st_mtime_ns
    succeed(*SUITE, "--out", suite)
    assert files(suite) == before
    assert result.stat().st_mtime_ns == written


def test_an_interrupted_suite_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(*SUITE, "--out", tmp_path)
    assert wait_until((tmp_path / "cartpole-n5" / "manifest.json").exists, process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told_command(output)[1:] == command(*SUITE, "--out", tmp_path)[1:]


def test_a_report_of_a_suite_is_of_its_runs(suite: Path, tmp_path: Path) -> None:
    output = succeed("report", suite, "--level", "0.9", "--out", tmp_path / "judged")
    assert f"report: {tmp_path / 'judged.html'}" in output
    text = (tmp_path / "judged.md").read_text()
    assert "## cartpole-n5: CartPole-v1, 5 agents" in text
    assert "90% t-intervals" in text
    assert "95% t-intervals" not in text
    assert (tmp_path / "judged.html").is_file()
    assert (tmp_path / "figures" / "welfare.png").is_file()


def test_a_report_of_a_run_stands_beside_it(runs: tuple[Path, Path]) -> None:
    first, _ = runs
    succeed("report", first, "--level", "0.9")
    text = (first / "report.md").read_text()
    assert "## first: FrozenLake-v1, 3 agents" in text
    assert "90% t-intervals" in text
    succeed("report", first, "--level", "0.9")
    assert (first / "report.md").read_text() == text


def test_one_report_of_several_runs(runs: tuple[Path, Path], tmp_path: Path) -> None:
    succeed("report", *runs, "--out", tmp_path / "both")
    text = (tmp_path / "both.md").read_text()
    assert text.index("## first: ") < text.index("## second: ")


def test_runs_are_compared_with_what_they_differ_in(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    output = succeed("compare", *runs, "--out", tmp_path / "compared.md", "--level", "0.9")
    text = (tmp_path / "compared.md").read_text()
    assert "| second | federation.exploration: 1.0 → 3.0 |" in text
    assert text.count("federation.") == 1  # nothing else does
    assert "90% t-interval" in text
    assert "above a seed of first" in text
    for said in ("Runs side by side", "Settings that differ", "federation.exploration"):
        assert said in output


def test_a_run_compared_with_its_copy_differs_in_nothing(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    first, _ = runs
    shutil.copytree(first, tmp_path / "copy" / "first")
    output = succeed("compare", first, tmp_path / "copy" / "first", first, "--margin", "5")
    assert "Equivalent within 5" in output
    assert f"{first.parent.name}/first" in output
    assert output.count("copy/first") == 4  # with its scores, its two arms and its settings
    assert "federation." not in output


def test_runs_of_one_name_are_not_archived_over_each_other(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = runs
    shutil.copytree(second, tmp_path / "copy" / "first")
    done = fedhql("archive", first, tmp_path / "copy" / "first", "--out", tmp_path / "kept")
    assert done.returncode == 2
    assert "another of these runs would also go to" in done.stderr
    assert not (tmp_path / "kept").exists()
    succeed("archive", first, "--out", tmp_path / "kept")
    assert f"wrote {tmp_path / 'kept' / 'first'}" in succeed(
        "archive", first, "--out", tmp_path / "kept"
    )
    manifest = (first / "manifest.json").read_text()
    done = fedhql("archive", first, "--out", first.parent)
    assert done.returncode == 2
    assert "is a run, not the archive of one" in done.stderr
    assert (first / "manifest.json").read_text() == manifest
    done = fedhql("archive", tmp_path / "copy" / "first", "--out", tmp_path / "kept")
    assert done.returncode == 2
    assert "holds another run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suite", "papers", "--out", "new"], "unknown suite 'papers'; allowed: cartpole-n5, "),
        (["suite", "paper", "--out", "new", "--budget-fraction", "0"], "--budget-fraction 0: "),
        (["suite", "paper", "--out", "new", "--budget-fraction", "2"], "--budget-fraction 2: "),
        (["suite", "paper", "--out", "new", "--seeds", "a"], "--seeds a: allowed: whole numbers"),
        (
            ["suite", "paper", "--out", "new", "--arm", "both"],
            "arm = 'both': 'both' is not KEY=VALUE",
        ),
        (["suite", "cartpole-n5", "--out", "new", "--set", "agents.x=1"], "agents.1.x: unknown"),
        (
            ["suite", "cartpole-n5", "--out", "new", "--engine", "fast"],
            "engine = 'fast': allowed: ",
        ),
        (["report", "first", "--level", "2"], "level = 2: allowed: between 0 and 1, as in 0.95"),
        (["compare", "first", "first", "--level", "0"], "level = 0: allowed: between 0 and 1"),
        (["compare", "first", "first", "--margin", "0"], "--margin 0: allowed: a difference"),
        (["report", "new"], "new holds no run of fedhql (no manifest.json)"),
        (["report", "first/figures"], "first/figures holds no run of fedhql"),
        (["report", "experiment.toml"], "experiment.toml holds no run of fedhql"),
        (["report", "readings.csv"], "readings.csv does not exist"),
        (["compare", "first", "new"], "new holds no run of fedhql"),
        (["compare", "first"], "compare takes at least two runs"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, runs: tuple[Path, Path]) -> None:
    home = runs[0].parent
    done = fedhql(*arguments, cwd=home)
    assert done.returncode == 2, done
    assert done.stderr.startswith("fedhql: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (home / "new").exists()


def test_another_suite_in_the_same_place_is_refused(suite: Path) -> None:
    before = files(suite)
    done = fedhql(*SUITE, "--set", "federation.exploration=3", "--out", suite)
    assert done.returncode == 2
    assert "federation.exploration is 3.0 here and 1.0 there" in done.stderr
    assert done.stderr.count("\n") == 1
    assert files(suite) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("suite", "A second call runs only what is missing."),
        ("report", "Write a page about runs"),
        ("compare", "Compare runs side by side"),
    ],
)
def test_help(command: str, said: str) -> None:
    assert said in " ".join(succeed(command, "--help").split())


def test_tables_of_a_report_cut_nothing() -> None:
    file, name = StringIO(), "lunarlander-n10-plus-agents"
    table = Table("Runs", ("run", "return"), [(name, "123.4 [100, 150]")])
    print_table(Console(file=file, width=20), table)
    cells = [line.split("│")[1].strip() for line in file.getvalue().splitlines() if "│" in line]
    assert "".join(cells) == name
