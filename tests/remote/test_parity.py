"""A federation writes the same bytes over the network as in one process."""

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedhql.engines.seeds import Stream, seeds_for
from tests.cli.running import FEDHQL, succeed, write_file

RECORDS = ("evaluations.csv", "federation.csv")
PATIENCE_SECONDS = 240.0

FROZEN_LAKE = """
[environment]
id = "FrozenLake-v1"
discount = 0.95
[federation]
query_batch = 8
self_learning_env_steps = 300
server_environments = "{server_environments}"
[budget]
env_steps_per_agent = 4_000
[evaluation]
episodes = 3
interval_env_steps = 200
moments = "both"
"""
# The goals are near, so that agents earn something in auditions.
CARRIED_OVER = FROZEN_LAKE.format(server_environments="carry-over").replace(
    '"FrozenLake-v1"', '"FrozenLake-v1"\noptions.desc = ["SFG", "FFH", "HFG"]'
)
CARRIED_OVER = CARRIED_OVER.replace(
    "[budget]",
    'rule = "sceptical"\npessimism = 1\nbroadcast = "all-actions"\n'
    "replay_batch = 6\nreplay_capacity = 40\nrandom_actions = 0.3\n"
    "random_actions_env_steps = 1_000\nauditions = 2\n[budget]",
)
SECURE = "secure_aggregation = true\nsecure_value_bound = 10\n"
CART_POLE = """
[environment]
id = "CartPole-v1"
discount = 0.99
[federation]
query_batch = 16
horizon_steps = 4
self_learning_env_steps = 300
[budget]
env_steps_per_agent = 1_100
[evaluation]
episodes = 2
"""

Agents = Sequence[Mapping[str, Any]]  # the kind and settings of each agent
TABULAR: Agents = (
    {"kind": "tabular"},
    {"kind": "tabular", "exploration": "boltzmann", "temperature": 0.1},
    {"kind": "tabular", "exploration": "ucb"},
)
# They act by their policies, and not greedily in their values.
POLICIES: Agents = (
    {"kind": "sb3-ppo", "n_steps": 64, "hidden": [8], "q_hidden": [8], "n_epochs": 2},
    {"kind": "sb3-a2c", "hidden": [8], "q_hidden": [8]},
)
DQN: Agents = (
    {"kind": "dqn", "hidden": [16], "learning_starts": 50, "learning_rate": 0.01},
    {"kind": "dqn", "hidden": [8, 8], "learning_starts": 50, "activation": "tanh"},
)


@dataclass
class Network:
    """A server and its members, each in its own process."""

    directory: Path
    task: str
    agents: Agents
    address: str = "127.0.0.1:0"
    members: list[subprocess.Popen[bytes]] = field(default_factory=list)
    server: subprocess.Popen[bytes] | None = None
    servers: int = 0  # started so far

    @property
    def secure(self) -> bool:
        return SECURE in self.task

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def serve(self) -> None:
        names, N = [f"agent{n}" for n, _ in enumerate(self.agents, start=1)], len(self.agents)
        # The server waits for every member, as a federation in one process does.
        service = (
            f"[service]\nmembers = {json.dumps(names)}\nstart_with = {N}\nquorum = {N}\n"
            "exchange_deadline_seconds = 200\nreturn_seconds = 200\n"
            + ("evaluate_members = false\n" if self.secure else "")
        )
        file = self.directory / "federation.toml"
        file.write_text(self.task + service)
        self.servers += 1
        self.server = self._start(
            f"server{self.servers}.log",
            *("serve", file, "--insecure", "--listen", self.address, "--home", self.home),
        )
        listens = rf"{re.escape('listens on port')} (\d+)"
        wait_until(lambda: re.search(listens, self.server_log()) is not None, self.server)
        found = re.search(listens, self.server_log())
        assert found is not None, self.server_log()
        self.address = f"127.0.0.1:{found[1]}"

    def server_log(self) -> str:
        return (self.directory / f"server{self.servers}.log").read_text()

    def join(self) -> None:
        """Start all members, with the agents' seeds of an experiment with seed 0."""
        for n, agent in enumerate(self.agents):
            name, seed = f"agent{n + 1}", int(seeds_for(0, Stream.AGENT, n, count=1)[0])
            own = {key: value for key, value in agent.items() if key != "kind"}
            options = [f"--set={key}={json.dumps(value)}" for key, value in own.items()]
            member = self._start(
                f"{name}.log",
                *("join", self.address, "--insecure", "--agent", agent["kind"], "--as", name),
                *("--home", self.directory / name, "--seed", seed, *options),
                *(["--secure-aggregation"] if self.secure else []),
            )
            self.members.append(member)

    def finish(self) -> None:
        """Wait until all processes end by themselves, and check that they succeed."""
        assert self.server is not None
        for process in (self.server, *self.members):
            assert process.wait(PATIENCE_SECONDS) == 0, self.logs()
        assert "not known to have" not in self.server_log()

    def wait_for_improvements(self, count: int) -> None:
        assert self.server is not None
        wait_until(lambda: (self.fact("improvements") or 0) >= count, self.server)

    def stop(self, how: signal.Signals) -> None:
        assert self.server is not None
        self.server.send_signal(how)
        expected = -how if how == signal.SIGKILL else 0
        assert self.server.wait(PATIENCE_SECONDS) == expected, self.logs()
        assert self.fact("position")["stage"] != "finished", (
            "the federation finished before it was stopped"
        )

    def fact(self, name: str) -> Any:
        """Return a fact from the journal; the server may be running."""
        with closing(sqlite3.connect(self.home / "journal.sqlite")) as journal:
            row = journal.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def logs(self) -> str:
        paths = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in paths)

    def close(self) -> None:
        for process in (self.server, *self.members):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _start(self, log: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("wb") as file:
            return subprocess.Popen(
                [FEDHQL, *map(str, arguments)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory,
            )


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[[str, Agents], Network]]:
    made: list[Network] = []

    def make(task: str, agents: Agents) -> Network:
        made.append(Network(tmp_path, task, agents))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Agents], Path]:
    """Return a function that runs a task once by `fedhql run` and returns its directory."""

    @cache
    def run(text: str) -> Path:
        directory = tmp_path_factory.mktemp("run")
        file, out = write_file(directory, text), directory / "out"
        succeed(
            *("run", file, "--out", out, "--engine", "messages"),
            *("--arm", "fedhql", "--seeds", "0"),
        )
        return out / "cells" / "fedhql" / "seed0"

    return lambda task, agents: run(task + "".join(map(section_of, agents)))


def section_of(agent: Mapping[str, Any]) -> str:
    return "[[agents]]\n" + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in agent.items()
    )


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until `reached()` is true or the process has ended."""
    while not reached() and process.poll() is None:
        time.sleep(0.01)


def assert_same_records(one: Path, other: Path) -> None:
    for name in RECORDS:
        ours, theirs = ((home / name).read_text().splitlines() for home in (one, other))
        if name == "evaluations.csv":  # a server does not know of its members' silent units
            ours, theirs = ([line.rpartition(",")[0] for line in of] for of in (ours, theirs))
        assert len(ours) > 2
        assert ours == theirs


@pytest.mark.parametrize(
    ("task", "agents"),
    [
        (FROZEN_LAKE.format(server_environments="reset"), TABULAR),
        (CARRIED_OVER, TABULAR),
        (CART_POLE, DQN),
        (CART_POLE, POLICIES),
    ],
    ids=["tabular", "tabular, carry-over and replay", "dqn", "policies"],
)
def test_a_network_writes_the_same_records_as_one_process(
    task: str,
    agents: Agents,
    network: Callable[[str, Agents], Network],
    in_one_process: Callable[[str, Agents], Path],
) -> None:
    federation = network(task, agents)
    federation.serve()
    federation.join()
    federation.finish()
    assert_same_records(federation.home, in_one_process(task, agents))


def test_secure_aggregation_over_a_network_writes_the_same_rounds(
    network: Callable[[str, Agents], Network], in_one_process: Callable[[str, Agents], Path]
) -> None:
    """With secure aggregation the server cannot evaluate members, so that file is empty."""
    task = FROZEN_LAKE.format(server_environments="reset")
    task = task.replace("[federation]\n", f"[federation]\n{SECURE}")
    federation = network(task, TABULAR)
    federation.serve()
    federation.join()
    federation.finish()
    ours, theirs = (
        (home / "federation.csv").read_bytes()
        for home in (federation.home, in_one_process(task, TABULAR))
    )
    assert ours == theirs
    assert len(ours.splitlines()) > 2
    assert len((federation.home / "evaluations.csv").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            FROZEN_LAKE.format(server_environments="reset"), id="reset", marks=pytest.mark.slow
        ),
        pytest.param(CARRIED_OVER, id="carry-over and replay"),
    ],
)
def test_a_restarted_server_writes_the_same_records(
    task: str,
    network: Callable[[str, Agents], Network],
    in_one_process: Callable[[str, Agents], Path],
) -> None:
    federation = network(task, TABULAR)
    federation.serve()
    federation.join()
    for number, how in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM), start=1):
        federation.wait_for_improvements(20 * number)
        federation.stop(how)
        federation.serve()
    federation.finish()
    assert federation.fact("epoch") == 4
    assert_same_records(federation.home, in_one_process(task, TABULAR))
