"""Runs of the compiled engine, as a user starts them: what they leave, killed or not."""

import json
from pathlib import Path

import pytest

from fedhql.storage.records import EvaluationRow, FederationRow, read_rows
from tests.cli.running import fedhql, succeed, write_file
from tests.cli.test_resume import RECORDS, kill, start, wait_for_rows

FILE = """
[environment]
id = "CartPole-v1"
[federation]
query_batch = 8
horizon_steps = 4
self_learning_env_steps = 100
[budget]
env_steps_per_agent = 3000
[evaluation]
episodes = 2
[[agents]]
hidden = [8]
learning_rate = 0.005
learning_starts = 50
improvement_steps = 4
train_freq = 1
target_update_interval = 1000
[[agents]]
hidden = [8]
learning_rate = 0.01
learning_starts = 50
improvement_steps = 4
train_freq = 1
target_update_interval = 1000
"""
TWO_SEEDS = ("--seeds", "0,1", "--jobs", "1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_file(tmp_path_factory.mktemp("experiment"), FILE)


@pytest.fixture(scope="module")
def whole(file: Path) -> Path:
    """Both arms with two seeds, undisturbed."""
    out = file.parent / "whole"
    done = fedhql("run", file, "--out", out, *TWO_SEEDS)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def lines(path: Path, arms: tuple[str, ...]) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(arms)]


def files(out: Path) -> set[str]:
    found = (str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    return {name for name in found if not name.endswith(".lock")}


def test_a_run_leaves_everything(whole: Path) -> None:
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["engine"] == "compiled"
    assert json.loads((whole / "summary.json").read_text())["finished"] is True
    kept = {
        f"agents/{arm}/seed{seed}/agent{n}/{which}/{name}"
        for arm in ("independent", "fedhql")
        for seed in (0, 1)
        for n in (1, 2)
        for which in ("best", "last")
        for name in ("network.json", "parameters.npz")
    }
    assert kept == {name for name in files(whole) if name.startswith("agents/")}
    assert not list((whole / "grids").iterdir())  # only of use to a run that is not finished
    rows = read_rows(whole / "evaluations.csv", EvaluationRow)
    for arm in ("independent", "fedhql"):
        for seed in (0, 1):
            mine = [row for row in rows if (row.arm, row.seed, row.agent) == (arm, seed, "agent2")]
            assert [row.own_env_steps for row in mine][:3] == [100, 200, 300]
            assert 2_990 < mine[-1].budget_env_steps <= 3_000
    rounds = read_rows(whole / "federation.csv", FederationRow)
    assert {row.arm for row in rounds} == {"fedhql"}
    assert all(row.round_server_env_steps == 32 for row in rounds[:20])


def test_another_engine_cannot_go_on_with_it(file: Path, whole: Path) -> None:
    done = fedhql("run", file, "--out", whole, "--resume", "--engine", "messages")
    assert done.returncode == 2
    assert "was begun with engine = 'compiled' and must be resumed with it" in done.stderr


def test_killed_and_resumed_with_another_arm(file: Path, whole: Path, tmp_path: Path) -> None:
    """`kill -9` leaves the same bytes; what is added makes a grid of its own."""
    out = tmp_path / "killed"
    process = start("run", file, "--out", out, *TWO_SEEDS)
    assert wait_for_rows(out, 40, process)
    assert process.poll() is None, "finished before it was killed: the test proves nothing"
    kill(process)
    assert list(out.glob("grids/0/round-*"))
    # As many as before, so that most of what was compiled serves them too.
    more = ("--arm", "exploration=10", "--arm", "exploration=3")
    succeed("run", file, "--out", out, "--resume", *more, "--jobs", 1)
    for name in RECORDS:
        before = ("independent", "fedhql")
        assert lines(out / name, before) == lines(whole / name, before)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["arms"] == ["independent", "fedhql", "exploration=3", "exploration=10"]
    rows = read_rows(out / "federation.csv", FederationRow)
    cells = dict.fromkeys((row.arm, row.seed) for row in rows)
    assert list(cells) == [(arm, seed) for arm in manifest["arms"][1:] for seed in (0, 1)]
    spreads = {cell: [r.spread for r in rows if (r.arm, r.seed) == cell] for cell in cells}
    assert len({tuple(each) for each in spreads.values()}) == 6
    assert not list((out / "grids").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--jobs", "2"), ("--jobs", "1", "--engine", "messages")])
def test_agrees_with_a_run_in_other_company(
    how: tuple[str, ...], file: Path, whole: Path, tmp_path: Path
) -> None:
    """Two programs of two lanes each instead of one of four, or agents as objects.

    Then sums in float32 may be taken in another order, so what agrees is the files and, of the
    rows, as many as come before a difference in the last bit has grown into another action.
    """
    out = tmp_path / "other"
    succeed("run", file, "--out", out, "--seeds", "0,1", *how)
    assert files(out) == files(whole)
    for cell in ("independent,0", "independent,1", "fedhql,0", "fedhql,1"):
        ours, theirs = (lines(home / "evaluations.csv", (cell,)) for home in (whole, out))
        assert len(ours) == len(theirs)
        assert ours[:20] == theirs[:20]  # ten rounds of two agents
