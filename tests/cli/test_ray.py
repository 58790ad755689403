"""`--on ray` with a Ray of its own: the same bytes, no output, and nothing left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.running import TABULAR, command, fedhql, succeed, told_command, write_file
from tests.cluster.test_nodes import contents

MINE = """
import json
import numpy as np
class Mine:
    def __init__(self, seed): self.rng = np.random.default_rng(seed)
    def self_learn(self, env_steps): self.rng.random(env_steps)
    def q_values(self, states): return np.tile(self.rng.random(4), (len(states), 1))
    def improve(self, states, actions, targets): self.rng.random(len(states))
    def save(self, directory):
        (directory / "state.json").write_text(json.dumps(self.rng.bit_generator.state))
    def restore(self, directory):
        self.rng.bit_generator.state = json.loads((directory / "state.json").read_text())
"""


def experiment(home: Path, budget: int) -> Path:
    """Two kinds of agents, one of them a user's own from where they work."""
    (home / "mine.py").write_text(MINE)
    text = TABULAR.format(budget=budget).partition("[[agents]]")[0]
    text = text.replace("episodes = 3", "episodes = 3\nepisode_step_limit = 5")
    agents = ("mine:Mine", "tabular", "tabular")
    return write_file(home, text + "".join(f'[[agents]]\nkind = "{kind}"\n' for kind in agents))


class Started:
    """A command whose processes, and theirs, can be told from all others."""

    def __init__(self, home: Path, *arguments: object) -> None:
        self._mark = uuid4().hex
        self.process = subprocess.Popen(
            command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=home,
            env=os.environ | {"FEDHQL_TEST_MARK": self._mark, "HOME": str(home)},
        )

    def processes(self) -> list[int]:
        """Those that are alive."""
        mark, found = f"FEDHQL_TEST_MARK={self._mark}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
        return found

    def wait_until_all_ended(self) -> None:
        wait_until(lambda: not self.processes())


def wait_until(reached: Callable[[], bool]) -> None:
    while not reached():  # pytest's own time limit ends it
        time.sleep(0.05)


reads_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")


@reads_proc
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--attack", "noise", "--attackers", "1"], id="plain and attacked"),
        pytest.param(
            ["--set", "federation.secure_aggregation=true"], id="secure", marks=pytest.mark.slow
        ),
    ],
)
def test_the_same_bytes_as_messages_and_nothing_else(tmp_path: Path, options: list[str]) -> None:
    arguments = ("run", experiment(tmp_path, 900), "--seeds", "3", *options)
    old_spelling = "--set" in options  # which still works, with a line that says so
    on_ray = ("--engine", "ray") if old_spelling else ("--on", "ray")
    run = Started(tmp_path, *arguments, "--out", "ray", *on_ray)
    said, complaints = run.process.communicate()
    assert run.process.returncode == 0, complaints
    deprecated = "fedhql: warning: --engine ray is deprecated: write --on ray\n"
    assert complaints == (deprecated if old_spelling else "")
    assert said.rstrip().endswith("results: ray")
    assert not (tmp_path / ".ray").exists()  # a token there is one for every cluster to come
    run.wait_until_all_ended()
    succeed(*arguments, "--out", "here", "--engine", "messages", cwd=tmp_path)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


@pytest.mark.slow
@reads_proc
def test_a_killed_driver_takes_its_ray_along_and_can_be_resumed(tmp_path: Path) -> None:
    """Resumed here, without Ray: where agents live is no part of a run."""
    file = experiment(tmp_path, 24_000)
    arguments = ("run", file, "--arm", "fedhql")
    killed = Started(tmp_path, *arguments, "--out", "ray", "--on", "ray")
    checkpoints = tmp_path / "ray/cells/fedhql/seed0/checkpoint"
    wait_until(lambda: any(path.name > "round-000000000" for path in checkpoints.glob("round-*")))
    killed.process.send_signal(signal.SIGKILL)
    killed.process.communicate()
    killed.wait_until_all_ended()
    assert not (tmp_path / "ray/cells/fedhql/seed0/result.json").exists()
    succeed("run", file, "--out", "ray", "--resume", cwd=tmp_path)
    succeed(*arguments, "--out", "here", cwd=tmp_path)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


@pytest.mark.slow
@reads_proc
def test_an_interrupt_is_one_line_and_ends_everything(tmp_path: Path) -> None:
    file = experiment(tmp_path, 5_000_000)
    run = Started(tmp_path, "run", file, "--out", "ray", "--on", "ray")
    wait_until((tmp_path / "ray/cells/fedhql/seed0/evaluations.csv").exists)
    os.killpg(run.process.pid, signal.SIGINT)  # as Ctrl-C does
    nothing, said = run.process.communicate()
    assert nothing == ""
    assert told_command(said)[-2:] == ["--no-figures", "--resume"]
    assert run.process.returncode == 130
    run.wait_until_all_ended()


@pytest.mark.slow
def test_a_suite_of_compiled_grids_at_a_url(tmp_path: Path) -> None:
    """As many grids as the cores give the same lanes, and so the same bytes."""
    options = ["--budget-fraction", "0.003", "--seeds", "0", "--arm", "independent"]
    options += ["--arm", "fedhql", "--set", "evaluation.best_episodes=2"]
    url = (tmp_path / "bucket").as_uri()
    said = succeed("suite", "cartpole-n5", *options, "--out", url, "--on", "ray")
    assert said.rstrip().endswith(f"report: {url}/report.html")
    succeed("suite", "cartpole-n5", *options, "--out", tmp_path / "here")
    there, here = (contents(tmp_path / where / "cartpole-n5") for where in ("bucket", "here"))
    assert there == here


def test_options_of_another_engine(tmp_path: Path) -> None:
    file = experiment(tmp_path, 900)
    said = fedhql("run", file, "--out", tmp_path / "run", "--address", "here")
    assert said.stderr == "fedhql: error: address = 'here' is for on = 'ray'\n"
    assert said.returncode == 2
    said = fedhql("suite", "cartpole-n5", "--out", tmp_path, "--on", "ray", "--jobs", "1")
    assert said.stderr.startswith("fedhql: error: --jobs is for this machine")
