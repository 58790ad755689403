"""What a run has kept is exported as a policy that acts as the run's evaluations did."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.acting import GreedyAnswer
from fedhql.agents.network_policy import write_network
from fedhql.contract import Exportable
from fedhql.engines.build_agent import build_agents
from fedhql.engines.evaluation import evaluate, short
from fedhql.engines.kept_agents import kept_agents
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.batch import EnvironmentBatch
from fedhql.errors import AgentRefused, FedHQLError, RunDirectoryError, SettingsError
from fedhql.federation import rule_named
from fedhql.federation.consensus import consensus
from fedhql.policy import ConsensusRule, Policy, load_policy
from fedhql.settings.experiment import read_settings
from fedhql.storage.records import CONSENSUS, EvaluationRow, read_rows
from fedhql.storage.run_directory import Cell, RunDirectory
from tests.engines.kept_run import EPISODES, RANDOM_MDP, TABULAR, begun_run, finished_run

ARMS = [
    "fedhql",
    "rule=median-mad",
    "rule=trimmed,trim=1",
    "rule=bellman-weighted",
    "attack=sign-flip,attackers=1",
]
ALL_STATES = np.arange(50)
WITHOUT_FRAMEWORKS = """
import sys
import numpy as np
from fedhql.policy import load_policy

print(load_policy(sys.argv[1]).act(np.load(sys.argv[2])).tolist())
loaded = {"jax", "torch", "gymnasium", "pydantic", "matplotlib"} & {*sys.modules}
assert not loaded, loaded
"""


class Loner:
    """Cannot be saved and cannot be exported."""

    def __init__(self, seed: int) -> None: ...

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        return np.tile(np.arange(4.0), (len(states), 1))

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


class Savable(Loner):
    """Keeps its whole state, which only its own class can read."""

    def save(self, directory: Path) -> None:
        (directory / "nothing").touch()

    def restore(self, directory: Path) -> None:
        assert (directory / "nothing").exists()


class Exporting(Loner):
    """Exports a network: a table of values, which say the opposite of what Loner says."""

    def export(self, directory: Path) -> None:
        table_SA = np.tile(np.arange(4.0, 0.0, -1.0, dtype=np.float32), (50, 1))
        write_network(directory, [(table_SA, np.zeros(4, dtype=np.float32))], "relu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return finished_run(tmp_path_factory.mktemp("run"), "independent", *ARMS)


def play_again(policy: Policy, *stream: int) -> tuple[float, float]:
    """Return the mean return and the start value of the policy in the evaluation's episodes."""
    seeds_PE = seeds_for(0, Stream(stream[0]), *stream[1:], count=EPISODES)[None]
    played = evaluate(
        lambda states_N: [policy.answer(states) for states in states_N],
        EnvironmentBatch("tests.known_mdps:RandomMDP-v0", EPISODES),
        seeds_PE,
        discount=0.9,
    )
    return float(played.returns.mean()), short(played.start_values.mean())


def test_a_policy_acts_as_its_agent_does_and_a_consensus_in_the_values() -> None:
    values = np.array([[1, 3, 2]], dtype=np.float32)

    def self_willed(states: Any) -> GreedyAnswer:
        return GreedyAnswer(values, np.array([0]))

    states = np.zeros((1, 4))
    assert Policy([self_willed]).act(states).tolist() == [0]
    centre = ConsensusRule("mean-std", {"exploration": 1.0}).centre()
    agreed = Policy([self_willed, self_willed], centre)
    assert agreed.act(states).tolist() == [1]
    assert agreed.q_values(states).tolist() == [[1, 3, 2]]


@pytest.mark.parametrize("arm", ARMS)
def test_the_exported_consensus_acts_as_in_the_last_evaluation(
    run: RunDirectory, tmp_path: Path, arm: str
) -> None:
    """RandomMDP's returns are sums of real rewards, so a single different action would show."""
    kept_agents(run.path, arm, 0).export(CONSENSUS, tmp_path / "policy")  # of last states
    rows = [
        row
        for row in read_rows(run.cell(Cell(arm, 0)) / "evaluations.csv", EvaluationRow)
        if row.agent == CONSENSUS
    ]
    replayed = play_again(load_policy(tmp_path / "policy"), Stream.CONSENSUS, len(rows) - 1)
    assert replayed == (rows[-1].mean_return, rows[-1].start_value)


def test_an_exported_agent_acts_as_in_the_last_evaluation(
    run: RunDirectory, tmp_path: Path
) -> None:
    kept_agents(run.path, "fedhql", 0, "last").export("agent2", tmp_path / "policy")
    rows = [
        row
        for row in read_rows(run.cell(Cell("fedhql", 0)) / "evaluations.csv", EvaluationRow)
        if row.agent == "agent2"
    ]
    replayed = play_again(load_policy(tmp_path / "policy"), Stream.EVALUATION, 1, len(rows) - 1)
    assert replayed == (rows[-1].mean_return, rows[-1].start_value)


@pytest.mark.parametrize("name", ["agent3", CONSENSUS])
@pytest.mark.parametrize("state", ["best", "last"])
def test_a_policy_from_its_files_is_the_policy_of_the_run(
    run: RunDirectory, tmp_path: Path, name: str, state: str
) -> None:
    agents = kept_agents(run.path, None, None, state)
    agents.export(name, tmp_path / "policy")
    agents.export(name, tmp_path / "policy")  # replaces the policy that is there
    loaded, of_run = load_policy(tmp_path / "policy"), agents.policy(name)
    np.testing.assert_array_equal(loaded.q_values(ALL_STATES), of_run.q_values(ALL_STATES))
    np.testing.assert_array_equal(loaded.act(ALL_STATES), of_run.act(ALL_STATES))
    source = json.loads((tmp_path / "policy" / "policy.json").read_text())["source"]
    assert (source["arm"], source["seed"], source["state"]) == ("fedhql", 0, state)


def test_networks_are_asked_without_any_framework(tmp_path: Path) -> None:
    settings = read_settings(
        '[environment]\nid = "CartPole-v1"\n[budget]\nenv_steps_per_agent = 9\n'
        '[[agents]]\nhidden = [8]\n[[agents]]\nhidden = [4, 4]\nactivation = "tanh"\n'
        "[[agents]]\nhidden = []\n"
    )
    directory, cell = begun_run(tmp_path / "run", settings), Cell("fedhql", 3)
    agents = build_agents(settings, cell.seed)
    for agent, name in zip(agents, settings.agent_names, strict=True):
        home = directory.agent(cell, name) / "best"
        home.mkdir(parents=True)
        assert isinstance(agent, Exportable)
        agent.export(home)
    directory.cell(cell).mkdir(parents=True)
    directory.result(cell).touch()
    kept_agents(directory.path, None, None, "best").export(CONSENSUS, tmp_path / "policy")
    states = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.save(tmp_path / "states.npy", states)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS, tmp_path / "policy", tmp_path / "states.npy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    centre = consensus(rule_named("mean-std", {"exploration": 1.0}))
    q_BA = centre([agent.q_values(states) for agent in agents])
    assert json.loads(done.stdout) == q_BA.argmax(axis=1).tolist()
    assert {0, 1} == {*json.loads(done.stdout)}
    policy = load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(policy.q_values(states), q_BA)
    with pytest.raises(ValueError, match=r"for one state, pass state\[None\]"):
        policy.act(states[0])


def test_a_missing_cell_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    def refused(error: type[FedHQLError], text: str, *arguments: Any) -> None:
        with pytest.raises(error, match=text):
            kept_agents(*arguments)

    refused(SettingsError, "has the arms independent; fedhql", run.path, "exploration=7", 0, "best")
    refused(SettingsError, "has the seeds 0 of arm fedhql", run.path, None, 7, "best")
    refused(SettingsError, "allowed: best, last", run.path, None, None, "first")
    refused(RunDirectoryError, "no run of fedhql", tmp_path, None, None, "best")
    empty = begun_run(tmp_path / "empty", read_settings(RANDOM_MDP + TABULAR))
    refused(RunDirectoryError, "holds no agents", empty.path, None, None, "best")
    empty.cell(Cell("fedhql", 2)).mkdir(parents=True)
    refused(RunDirectoryError, "fedhql/seed2 has not finished", empty.path, None, None, "best")
    with pytest.raises(SettingsError, match="has no 'agent9'; allowed: agent1, agent2, agent3, co"):
        kept_agents(run.path, None, None, "best").export("agent9", tmp_path / "policy")


def test_an_agent_without_a_network_cannot_be_exported_but_asked(tmp_path: Path) -> None:
    own = "".join(f'[[agents]]\nkind = "{__name__}:{name}"\n' for name in ("Savable", "Loner"))
    finished_run(tmp_path / "run", "fedhql", text=RANDOM_MDP + TABULAR + own)
    agents = kept_agents(tmp_path / "run", None, None, "last")
    with pytest.raises(
        AgentRefused, match=r"agent2 .* needs its own class or framework to act; allowed"
    ):
        agents.export(CONSENSUS, tmp_path / "policy")
    choose = r"--agent agent1 \(fedhql play\) or --policy agent1 \(fedhql export\)$"
    kept = f"; kept: agent1, agent2; choose {choose}"
    with pytest.raises(AgentRefused, match=f"agent3 .* kept no last state: .*{kept}"):
        agents.export("agent3", tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
    assert agents.policy("agent2").act(ALL_STATES).tolist() == [3] * 50


def test_an_own_class_that_exports_a_network_can_be_asked_and_exported(tmp_path: Path) -> None:
    own = f'[[agents]]\nkind = "{__name__}:Exporting"\n'
    finished_run(tmp_path / "run", "fedhql", text=RANDOM_MDP + TABULAR + own)
    agents = kept_agents(tmp_path / "run", None, None, "last")
    assert agents.policy("agent2").act(ALL_STATES).tolist() == [0] * 50
    agents.export("agent2", tmp_path / "policy")
    assert load_policy(tmp_path / "policy").act(ALL_STATES).tolist() == [0] * 50


def test_other_files_are_not_overwritten(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    agents = kept_agents(run.path, None, None, "last")
    with pytest.raises(RunDirectoryError, match="holds more than a policy of fedhql; choose"):
        agents.export(CONSENSUS, tmp_path)
    assert (tmp_path / "mine").exists()
    for _ in range(2):  # a policy may be replaced
        agents.export(CONSENSUS, tmp_path / "policy")
    (tmp_path / "policy" / "mine").touch()
    with pytest.raises(RunDirectoryError, match="holds more than a policy"):
        agents.export(CONSENSUS, tmp_path / "policy")
    assert (tmp_path / "policy" / "mine").exists()
    with pytest.raises(RunDirectoryError, match="holds no policy"):
        load_policy(tmp_path)
