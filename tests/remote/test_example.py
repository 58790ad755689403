"""examples/remote: the commands of its README work, and the script ends what it started."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.remote.run import AGENTS
from examples.remote.torch_agent import TorchAgent
from fedhql import BlackBoxAgent
from fedhql.contract import Checkpointable
from fedhql.settings.served import read_served_settings
from fedhql.storage.files import locked

EXAMPLE = Path(__file__).parents[2] / "examples" / "remote"
PATIENCE_SECONDS = 280.0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Use one thread: the networks are too small to gain from more."""
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the script with a budget for a little more than one round."""
    # A shell that runs the tests in the background makes their processes ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, EXAMPLE / "run.py", "--home", tmp_path / "home", "--budget", "1200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # the script ends its own processes
        process.communicate(timeout=60)


def require_all_ended(home: Path) -> None:
    """Check that all processes have ended: a running one holds the lock of its directory."""
    for directory in (home / "server" / "federation", *(home / name / "member" for name in AGENTS)):
        with locked(directory, wait=False):
            pass


def wait_for_members(home: Path, process: "subprocess.Popen[str]") -> None:
    log, deadline = home / "server.log", time.monotonic() + PATIENCE_SECONDS
    while not (log.exists() and all(f"{name} connected" in log.read_text() for name in AGENTS)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [(), ("cleo", "server")], ids=["", "killed"])
def test_three_owners_federate_even_if_processes_are_killed(
    killed: tuple[str, ...], run: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    home, before = tmp_path / "home", ""
    if killed:
        assert run.stdout is not None
        while not before.endswith("by evaluation:\n"):
            before += run.stdout.readline()
        wait_for_members(home, run)
        for name in killed:
            found = re.search(rf"^processes: .*{name} (\d+)", before, re.M)
            assert found is not None
            os.kill(int(found[1]), signal.SIGKILL)
    output = before + run.communicate(timeout=PATIENCE_SECONDS)[0]
    assert run.returncode == 0, output
    for name in killed:
        assert f"{name} was killed (signal 9) and is started again" in output
    assert re.search(r"^status page: http://127\.0\.0\.1:\d+/$", output, re.M)
    lines = output.splitlines()
    table = lines.index("mean return      first     best     last")
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == list(AGENTS)
    for name in AGENTS:
        assert re.search(rf"^ {name} +finished ", output, re.M)
        assert f"{name}: joined at improvement 0" in (home / f"{name}.log").read_text()
        # Every owner has its own key, and none has the authority's.
        certificates = home / name / "certs"
        assert {path.name for path in certificates.iterdir()} == {
            "ca.crt", f"{name}.crt", f"{name}.key"
        }  # fmt: skip
        assert stat.S_IMODE((certificates / f"{name}.key").stat().st_mode) == 0o600
    assert "mutual TLS" in (home / "server.log").read_text()
    require_all_ended(home)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_ends_its_processes(
    how: signal.Signals, run: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    wait_for_members(tmp_path / "home", run)
    run.send_signal(how)
    output, _ = run.communicate(timeout=60)
    assert run.returncode not in (0, None), output
    require_all_ended(tmp_path / "home")


def test_an_existing_directory_is_left_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE / "run.py", "--home", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} exists; remove it, or name another with --home\n"
    assert list(tmp_path.iterdir()) == []


def test_the_settings_file_names_the_owners() -> None:
    text = (EXAMPLE / "federation.toml").read_text()
    assert read_served_settings(text).service.members == tuple(AGENTS)
    assert tomllib.loads(text)["environment"]["id"] == "CartPole-v1"


def test_the_torch_agent_answers_learns_and_improves() -> None:
    agent = TorchAgent(seed=0)
    assert isinstance(agent, BlackBoxAgent)
    assert isinstance(agent, Checkpointable)
    states = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
    targets = np.ones(32, dtype=np.float32)
    before = np.abs(agent.q_values(states)[:, 0] - targets).mean()
    for _ in range(30):
        agent.improve(states, np.zeros(32, dtype=np.int64), targets)
    improved = agent.q_values(states)
    assert improved.dtype == np.float32
    assert np.abs(improved[:, 0] - targets).mean() < 0.5 * before
    agent.self_learn(200)
    assert not np.array_equal(agent.q_values(states), improved)


@pytest.mark.parametrize("steps", [0, 30, 500])
def test_a_restored_torch_agent_continues_exactly(steps: int, tmp_path: Path) -> None:
    states = np.random.default_rng(0).uniform(-1, 1, (8, 4)).astype(np.float32)
    improvement = (states, np.arange(8) % 2, np.ones(8, dtype=np.float32))
    agent, other = TorchAgent(seed=0), TorchAgent(seed=1)
    agent.self_learn(steps)
    agent.improve(*improvement)
    agent.save(tmp_path)
    other.restore(tmp_path)
    for each in (agent, other):
        each.self_learn(200)
        each.improve(*improvement)
        each.self_learn(100)
    np.testing.assert_array_equal(agent.q_values(states), other.q_values(states))
    assert agent.episode_actions == other.episode_actions
