"""The agent of `fedhql join`: what it loads, and what its owner can do with it at the end."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedhql
from fedhql.contract import BlackBoxAgent
from fedhql.engines.kept_agents import kept_agents
from fedhql.errors import AgentRefused, FedHQLError, MemberStopped, RunDirectoryError, SettingsError
from fedhql.remote.member.kept_agent import KeptAgent
from fedhql.remote.wire_pb2 import Learn, Task, Welcome
from fedhql.results.load import load_run
from fedhql.service.member_agent import agent_builder
from fedhql.settings.experiment import read_settings_file

BUILD = """
import sys
from pathlib import Path
from fedhql.remote.wire_pb2 import Task
from fedhql.service.member_agent import agent_builder

task = Task(environment="FrozenLake-v1", discount=0.9, env_steps_per_member=10, actions=4)
task.state_dtype = "int64"
agent_builder("ann", Path(sys.argv[1]), "{kind}", [], 0, None)(task)
print("jax" in sys.modules)
"""
TASK = Task(
    environment="FrozenLake-v1",
    options={"desc": '["SFFF", "FFFF", "FFFF", "FFFG"]'},
    discount=0.9,
    env_steps_per_member=1_000,
    actions=4,
    state_dtype="int64",
)
STATES = np.arange(16)


class Loner:
    """Cannot be saved and cannot be exported."""

    def __init__(self, seed: int, slope: float = 1.0) -> None:
        self.slope, self.learned = slope, 0

    def self_learn(self, env_steps: int) -> None:
        self.learned += env_steps

    def q_values(self, states: np.ndarray) -> np.ndarray:
        return np.tile(self.slope * self.learned * np.arange(4.0), (len(states), 1))

    def improve(self, states: object, actions: object, targets: object) -> None: ...


class Savable(Loner):
    """Keeps its whole state, which only its own class can read."""

    def save(self, directory: Path) -> None:
        (directory / "learned").write_text(str(self.learned))

    def restore(self, directory: Path) -> None:
        self.learned = int((directory / "learned").read_text())


def loads_jax(kind: str, home: Path) -> bool:
    code = [sys.executable, "-c", BUILD.format(kind=kind), str(home)]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


def trained(home: Path, kind: str, *overrides: str) -> BlackBoxAgent:
    """Let a member learn until the server says that the federation has ended."""
    agents = []

    def build(task: Task) -> BlackBoxAgent:
        agents.append(agent_builder("ann", home, kind, overrides, 7, None)(task))
        return agents[0]

    kept = KeptAgent("ann", home, build, time.monotonic)
    kept.begin(Welcome(federation="f", task=TASK))
    kept.learn(Learn(phase=1, env_steps=500, chunk_env_steps=500))
    kept.save_last()
    return agents[0]


def test_only_a_member_whose_agent_needs_jax_loads_it(tmp_path: Path) -> None:
    assert not loads_jax("tabular", tmp_path)
    assert loads_jax("dqn", tmp_path)


@pytest.mark.parametrize(
    ("kind", "override"),
    [("tabular", "learning_rate=0.5"), (f"{__name__}:Savable", "slope=-1")],
)
def test_the_agent_of_a_member_is_loaded_from_its_home(
    kind: str, override: str, tmp_path: Path
) -> None:
    agent = trained(tmp_path / "ann", kind, override)
    values = np.asarray(agent.q_values(STATES), dtype=np.float32)
    assert np.ptp(values) > 0
    for path in (tmp_path / "ann", tmp_path / "ann" / "last"):
        policy = fedhql.load_policy(path)
        np.testing.assert_array_equal(policy.q_values(STATES), values)
        np.testing.assert_array_equal(policy.act(STATES), values.argmax(axis=1))
    assert kept_agents(tmp_path / "ann").settings.environment.options == {
        "desc": ["SFFF", "FFFF", "FFFF", "FFFG"]
    }


@pytest.mark.parametrize("name", ["_ann", "-ann", "Ann.2"])
def test_a_name_that_may_join_is_read_back(name: str, tmp_path: Path) -> None:
    agent_builder(name, tmp_path, "tabular", [], 0, None)(TASK)
    assert read_settings_file(tmp_path / "settings.toml").agent_names == [name]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epsilon", "^setting 'epsilon': write key=value"),
        ("learning_rat=1", "^setting learning_rat: unknown key; did you mean 'learning_rate'"),
    ],
)
def test_a_wrong_setting_is_named(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        agent_builder("ann", tmp_path, "tabular", [override], 0, None)


def test_the_agent_of_a_member_is_exported_for_numpy(tmp_path: Path) -> None:
    agent = trained(tmp_path / "ann", "tabular")
    kept = kept_agents(tmp_path / "ann")
    kept.export(kept.default, tmp_path / "policy")
    exported = fedhql.load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(exported.q_values(STATES), agent.q_values(STATES))


def test_a_members_home_is_no_run(tmp_path: Path) -> None:
    home = tmp_path / "ann"
    trained(home, "tabular")

    def refused(error: type[FedHQLError], text: str, **choice: str | int) -> None:
        with pytest.raises(error, match=text):
            kept_agents(home, **choice)  # type: ignore[arg-type]

    refused(SettingsError, "state = 'best': .*ann is the home of a member", state="best")
    refused(SettingsError, "arm = 'fedhql': .* leave the arm out", arm="fedhql")
    refused(SettingsError, "seed = 0: .* leave the seed out", seed=0)
    with pytest.raises(SettingsError, match="has no 'consensus'; allowed: ann"):
        kept_agents(home).policy("consensus")
    with pytest.raises(RunDirectoryError, match="is the home of a member, not a run; allowed"):
        load_run(home)


def test_the_home_of_an_older_member_says_what_to_do(tmp_path: Path) -> None:
    trained(tmp_path, "tabular")
    (tmp_path / "settings.toml").unlink()
    with pytest.raises(RunDirectoryError, match="fedhql join once more with this version"):
        fedhql.load_policy(tmp_path)
    trained(tmp_path, "tabular")
    assert fedhql.load_policy(tmp_path)


def test_an_agent_that_cannot_be_kept_is_named_before_it_learns_and_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path / "ann", f"{__name__}:Loner")
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    neither = "its agent has neither save(directory) and restore(directory) nor export(directory)"
    assert told == [
        f"ann: the trained agent will be lost at the end: {neither}",
        f"ann: the trained agent is lost: {neither}",
    ]
    with pytest.raises(AgentRefused, match=r"kept no last state: .* federation must have ended"):
        fedhql.load_policy(tmp_path / "ann")
    caplog.clear()
    trained(tmp_path / "bob", f"{__name__}:Savable")
    assert not caplog.records


def test_a_home_that_cannot_be_written_stops_the_member(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MemberStopped, match="cannot be written"):
        agent_builder("ann", tmp_path / "file", "tabular", [], 0, None)(TASK)


def test_an_environment_that_imports_a_module_is_allowed_by_its_owner_only(tmp_path: Path) -> None:
    build = agent_builder("ann", tmp_path, "tabular", [], 0, None)
    with pytest.raises(AgentRefused, match=r"allow it with --environment pond:Pond-v0$"):
        build(Task(environment="pond:Pond-v0"))
