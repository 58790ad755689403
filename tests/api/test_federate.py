"""One federation from Python, of live agents and others."""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import fedhql
from fedhql.agents.own_class import same_environment
from tests.api.agents import BUDGET, ENV, QUICK, PlainAgent, SavedAgent
from tests.known_mdps import STATES


class Forgetful:
    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> None: ...


class EmptyAgent(PlainAgent):
    """An agent that is false, as an empty container is."""

    def __len__(self) -> int:
        return 0


def federate(agents: Any, **options: Any) -> fedhql.Result:
    return fedhql.federate(agents, ENV, BUDGET, settings=QUICK, **{"progress": False} | options)


def interrupt(progress: fedhql.Progress) -> None:
    if progress.consumed_env_steps > BUDGET / 2:
        raise KeyboardInterrupt


def test_live_agents_learn_in_place() -> None:
    north, south = PlainAgent(seed=1), PlainAgent(seed=2, learning_rate=0.3)
    result = federate({"north": north, "south": south})
    assert result.finished
    assert (result.agents, result.arms, result.seeds) == (["north", "south"], ["fedhql"], [0])
    for agent in (north, south):
        assert agent.improvements > 0
        assert 0 < agent.learned_env_steps < BUDGET  # the rest is its share of the server's
    curve = result.curves["fedhql"][0]
    assert curve.returns_NE.shape == (2, 6)
    assert curve.consumed_E.tolist() == [100, 200, 300, 400, 500, 600]
    recorded = result.settings["agents"]
    assert [agent["kind"] for agent in recorded] == ["tests.api.agents:PlainAgent"] * 2


def test_live_and_named_kinds_mix() -> None:
    live = PlainAgent(seed=1)
    result = federate([live, "tabular", {"kind": SavedAgent, "learning_rate": np.float32(0.5)}])
    assert [agent["kind"].split(":")[-1] for agent in result.settings["agents"]] == [
        "PlainAgent",
        "tabular",
        "SavedAgent",
    ]
    assert result.settings["agents"][2]["learning_rate"] == 0.5
    assert live.improvements > 0


def test_the_last_state_of_a_live_agent_is_the_agent() -> None:
    agents = [PlainAgent(seed=1), PlainAgent(seed=2)]
    result = federate(agents)
    states = np.arange(20)
    policy = result.policy("agent2", state="last")
    np.testing.assert_array_equal(policy.act(states), agents[1].q_SA[states].argmax(axis=1))
    mean_BA = np.mean([agent.q_SA[states].astype(np.float32) for agent in agents], axis=0)
    consensus = result.policy("consensus")
    np.testing.assert_allclose(consensus.q_values(states), mean_BA, rtol=1e-5)
    np.testing.assert_array_equal(consensus.act(states), mean_BA.argmax(axis=1))
    with pytest.raises(fedhql.FedHQLError, match=r"agent1 .* no best .* state='last'"):
        result.policy("agent1")
    with pytest.raises(ValueError, match=r"agent2 answers a batch of states.*pass state\[None\]"):
        policy.act(states[0])


def test_only_the_last_state_of_a_live_agent_can_be_asked() -> None:
    result = federate([SavedAgent(seed=1)])
    with pytest.raises(
        fedhql.FedHQLError, match=r"only its owner can read .*allowed: state='last'"
    ):
        result.policy("agent1")
    assert len(result.policy("agent1", state="last").act(np.arange(STATES))) == STATES


def test_an_agent_that_is_false_is_still_live() -> None:
    agent = EmptyAgent(seed=1)
    federate([agent])
    assert agent.improvements > 0


def test_live_agents_stay_open() -> None:
    agent = SavedAgent(seed=1)
    federate([agent])
    assert not agent.closed


def test_an_interrupted_federation_of_live_agents_resumes_exactly(tmp_path: Path) -> None:
    whole = [SavedAgent(seed=1), SavedAgent(seed=2)]
    expected = federate(whole)
    with pytest.raises(KeyboardInterrupt):
        federate([SavedAgent(1), SavedAgent(2)], out=tmp_path / "run", progress=interrupt)
    assert not fedhql.load(tmp_path / "run").finished
    others = [SavedAgent(seed=7), SavedAgent(seed=8)]  # they continue as the saved ones
    resumed = federate(others, out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(
        resumed.curves["fedhql"][0].returns_NE, expected.curves["fedhql"][0].returns_NE
    )
    for ours, theirs in zip(others, whole, strict=True):
        np.testing.assert_array_equal(ours.q_SA, theirs.q_SA)
    with pytest.raises(fedhql.FedHQLError, match="has finished"):
        federate(others, out=tmp_path / "run", resume=True)


def test_live_agents_do_not_learn_with_the_seed_of_an_interrupted_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        federate([SavedAgent(seed=1)], out=tmp_path / "run", progress=interrupt)
    agent = SavedAgent(seed=1)
    with pytest.raises(fedhql.FedHQLError, match="fedhql/seed0 would run besides fedhql/seed1"):
        federate([agent], out=tmp_path / "run", seed=1, resume=True)
    assert agent.learned_env_steps == 0


def test_live_agents_do_not_learn_alone_in_an_interrupted_study(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fedhql.study(
            [SavedAgent], ENV, BUDGET, settings=QUICK, out=tmp_path / "run", progress=interrupt
        )
    agent = SavedAgent(seed=1)
    with pytest.raises(fedhql.FedHQLError, match="independent/seed0 would run besides fedhql"):
        federate([agent], out=tmp_path / "run", resume=True)
    assert agent.learned_env_steps == 0


def test_live_agents_learn_with_one_more_seed(tmp_path: Path) -> None:
    first, second = SavedAgent(seed=1), SavedAgent(seed=2)
    federate([first], out=tmp_path / "run")
    result = federate([second], out=tmp_path / "run", seed=1, resume=True)
    assert result.seeds == [0, 1]
    with pytest.raises(fedhql.FedHQLError, match="already holds a run"):
        federate([SavedAgent(seed=3)], out=tmp_path / "run")
    states = np.arange(STATES)
    actions = result.policy("agent1", state="last").act(states)
    np.testing.assert_array_equal(actions, second.q_SA[states].argmax(axis=1))
    with pytest.raises(fedhql.FedHQLError, match="only its owner can read"):
        result.policy("agent1", seed=0, state="last")  # the first agent's


def test_without_out_the_files_go_with_the_result() -> None:
    result = federate([PlainAgent(seed=1)])
    home = result.path
    assert (home / "evaluations.csv").exists()
    del result
    assert not home.exists()


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([Forgetful()], r"agents\.1: Forgetful is not a BlackBoxAgent; it lacks improve"),
        ({"a": {"kind": "tabular", "name": "b"}}, r"agents\.1\.name: given twice, 'a' and 'b'"),
        ([3], r"agents\.1 = 3: allowed: a kind such as 'dqn'"),
        ("dqn", "agents = 'dqn': allowed: a list"),
        ([], "agents: empty"),
        ([{"kind": PlainAgent(0), "epsilon": 1}], r"agents\.1\.epsilon: a live agent"),
        ([{"kind": PlainAgent, "network": object()}], r"agents\.1\.network: .* functools.partial"),
        ([PlainAgent, "no-such-kind"], r"agents\.2\.kind: unknown kind 'no-such-kind'"),
        ([lambda: PlainAgent(0)], "unexpected keyword argument 'seed'"),
        ([lambda seed: object()], "is not a BlackBoxAgent; it lacks self_learn"),
    ],
)
def test_agents_that_cannot_be_federated(agents: Any, message: str) -> None:
    with pytest.raises(fedhql.FedHQLError, match=message):
        federate(agents)


@pytest.mark.parametrize("seed", [-1, "1", 0.5, True])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(fedhql.FedHQLError, match=f"seed = {seed!r}: allowed: a whole number >= 0"):
        federate(["tabular"], seed=seed)


class Declaring(PlainAgent):
    """An agent that says which environment it has."""

    env_id: str | None = None
    env: Any = None


@pytest.mark.parametrize(
    "declared", [{"env_id": "CartPole-v1"}, {"env": gymnasium.make("CartPole-v1")}]
)
def test_a_live_agent_of_another_environment_is_refused(declared: dict[str, Any]) -> None:
    agent = Declaring(seed=1)
    vars(agent).update(declared)
    with pytest.raises(
        fedhql.FedHQLError,
        match=f"south: this Declaring has the environment 'CartPole-v1', but .* is {ENV!r}",
    ):
        federate({"north": PlainAgent(seed=1), "south": agent})
    assert agent.learned_env_steps == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("CartPole-v1", "CartPole", True),  # the highest version
        ("CartPole-v0", "CartPole", False),
        ("CartPole-v1", "CartPole-v0", False),
        ("CartPole-v1", "module:CartPole-v1", True),
        ("module:CartPole", "CartPole-v1", True),
        ("NotRegistered", "NotRegistered", True),
        ("NotRegistered", "NotRegistered-v0", False),
        ("no id!", "no id!", True),
    ],
)
def test_ids_are_compared_as_gymnasium_resolves_them(one: str, other: str, same: bool) -> None:
    assert same_environment(one, other) == same_environment(other, one) == same


class Linear(PlainAgent):
    """Its weights are for states of four numbers."""

    def q_values(self, states: Any) -> Any:
        return np.asarray(states).reshape(len(states), -1) @ np.zeros((4, 2))


class Dividing(PlainAgent):
    def q_values(self, states: Any) -> Any:
        return 1 // 0


@pytest.mark.parametrize(
    ("agent", "own"), [(Linear, (ValueError, "matmul")), (Dividing, (ZeroDivisionError, "by zero"))]
)
def test_what_an_agent_raises_comes_as_it_is_with_its_name(
    agent: type[PlainAgent], own: tuple[type[Exception], str]
) -> None:
    by_name = f"raised inside south ({agent.__name__})"
    with pytest.raises(own[0], match=own[1]) as of_live:
        federate({"south": agent(seed=1)})
    assert of_live.value.__notes__ == [
        by_name,
        f"south was given states of {ENV}, of shape (2,); expected: values of shape (2, 4) "
        "(states, actions)",
    ]
    with pytest.raises(own[0], match=own[1]) as of_built:
        federate({"south": lambda seed: agent(seed)}, jobs=0)
    assert by_name in of_built.value.__notes__


def test_an_object_twice_is_refused() -> None:
    agent = PlainAgent(seed=0)
    with pytest.raises(fedhql.FedHQLError, match="the same object is given twice"):
        federate([agent, agent])


def test_other_processes_are_refused_where_they_cannot_build_the_agents() -> None:
    for options in ({"jobs": 2}, {"jobs": 2, "engine": "messages"}):
        with pytest.raises(fedhql.FedHQLError, match=re.escape("tests.api.agents:PlainAgent")):
            federate([PlainAgent(seed=0)], **options)
