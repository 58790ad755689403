"""`kill -9` at any moment, then --resume: the same bytes as a run nobody disturbed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import SB3, TABULAR, command, fedhql, succeed, told_command, write_file

RECORDS = ("evaluations.csv", "federation.csv")


def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """In a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=cwd,
    )


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> bool:
    """Whether it was reached before the process ended by itself."""
    while not reached():
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def rows_written(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("cells/*/*/evaluations.csv"))


def wait_for_rows(out: Path, more_than: int, process: subprocess.Popen[str]) -> bool:
    return wait_until(lambda: rows_written(out) > more_than, process)


def checkpointed_round(cell: Path) -> int:
    found = (int(path.name.removeprefix("round-")) for path in cell.glob("checkpoint/round-*"))
    return max(found, default=-1)


def kill_and_resume(delays: list[float], file: Path, out: Path, *options: str) -> None:
    """For each delay: run until new rows come, then that much longer, then kill -9. Then finish.

    Every other time only the parent is killed, and its workers must find out by themselves.
    """
    for number, delay in enumerate(delays):
        before = rows_written(out)
        process = start("run", file, "--out", out, "--resume", *options)
        assert wait_for_rows(out, before + 6, process)
        time.sleep(delay)
        assert process.poll() is None, "finished before it was killed: the test proves nothing"
        if number % 2:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    succeed("run", file, "--out", out, "--resume", *options)


def assert_same_records(one: Path, other: Path) -> None:
    for name in RECORDS:
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_killed_again_and_again_tabular(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=12_000))
    succeed("run", file, "--out", tmp_path / "whole")
    kill_and_resume([0.013, 0.037], file, tmp_path / "killed")
    assert_same_records(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", pytest.param("LunarLander-v3", marks=pytest.mark.slow)]
)
def test_killed_again_and_again_sb3(env_id: str, tmp_path: Path) -> None:
    file = write_file(tmp_path, SB3.format(env_id=env_id, budget=1_800))
    succeed("run", file, "--out", tmp_path / "whole", "--arm", "fedhql")
    kill_and_resume([0.0, 0.17], file, tmp_path / "killed", "--arm", "fedhql")
    assert_same_records(tmp_path / "killed", tmp_path / "whole")


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_killed_run_really_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=5_000_000))  # too much to finish
    out = tmp_path / "run"
    cell = out / "cells" / "fedhql" / "seed0"
    process = start("run", file, "--out", out, "--arm", "fedhql")
    assert wait_until(lambda: checkpointed_round(cell) > 0, process)
    kill(process)
    reached = checkpointed_round(cell)
    state = json.loads((cell / f"checkpoint/round-{reached:09d}/cell.json").read_text())
    shard = cell / "evaluations.csv"
    # Rows from before the checkpoint are not computed again: what is changed there stays.
    history = shard.read_bytes()[: state["record_lengths"][0]]
    marked = history.replace(b"fedhql,0,agent1,300,", b"fedhql,0,agent1,301,")
    assert marked != history
    shard.write_bytes(marked)
    process = start("run", file, "--out", out, "--resume")
    assert wait_until(lambda: checkpointed_round(cell) > reached, process)
    kill(process)
    assert shard.read_bytes().startswith(marked)
    later = json.loads(
        (cell / f"checkpoint/round-{checkpointed_round(cell):09d}/cell.json").read_text()
    )
    assert later["wall_seconds"] > state["wall_seconds"]  # time before the kill is counted


def test_workers_die_with_the_run(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=5_000_000))
    process = start("run", file, "--out", tmp_path / "run")
    assert wait_for_rows(tmp_path / "run", 6, process)
    process.kill()
    process.communicate()  # returns once every process that holds the pipe is gone
    written = rows_written(tmp_path / "run")
    time.sleep(0.5)
    assert rows_written(tmp_path / "run") == written


def test_two_runs_at_once_in_one_directory_are_refused(tmp_path: Path) -> None:
    file = write_file(tmp_path, TABULAR.format(budget=5_000_000))
    out = tmp_path / "run"
    process = start("run", file, "--out", out)
    assert wait_until((out / "manifest.json").exists, process)
    second = fedhql("run", file, "--out", out, "--resume")
    kill(process)
    assert second.returncode == 2
    assert "in use" in second.stderr


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_says_how_to_go_on(late: bool, tmp_path: Path) -> None:
    """Also while the workers are still starting up."""
    file = write_file(tmp_path, TABULAR.format(budget=5_000_000))
    process = start("run", file, "--out", tmp_path / "run")
    first_cell = "cells/independent/seed0/evaluations.csv"
    reached = tmp_path / "run" / (first_cell if late else "manifest.json")
    assert wait_until(reached.exists, process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    begun = command("run", file, "--out", tmp_path / "run")
    assert told_command(output)[1:] == [*begun[1:], "--resume"]


def test_a_cell_whose_agents_cannot_be_saved_starts_over(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np, time\n"
        "class Mine:\n"
        "    def __init__(self, seed): self.rng = np.random.default_rng(seed)\n"
        "    def self_learn(self, env_steps): time.sleep(0.05); self.rng.random(env_steps)\n"
        "    def q_values(self, states): return np.tile(self.rng.random(4), (len(states), 1))\n"
        "    def improve(self, states, actions, targets): pass\n"
    )
    text = TABULAR.format(budget=6_000).partition("[[agents]]")[0]
    file = write_file(tmp_path, text + '[[agents]]\nkind = "mine:Mine"\n' * 2)
    succeed("run", file, "--out", "whole", cwd=tmp_path)
    process = start("run", file, "--out", "killed", cwd=tmp_path)
    assert wait_for_rows(tmp_path / "killed", 10, process)
    kill(process)
    succeed("run", file, "--out", "killed", "--resume", cwd=tmp_path)
    assert_same_records(tmp_path / "killed", tmp_path / "whole")
