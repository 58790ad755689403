"""What every kind of stable-baselines3 keeps: exact steps, private streams, bitwise resume."""

import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fedhql import BlackBoxAgent, Checkpointable, Diagnosable, Exportable
from fedhql.agents.kinds import KINDS, load_policy
from fedhql.errors import AgentRefused
from fedhql.federation.cohort import greedy_answer_of
from tests.agents.sb3.pixels import SHAPE
from tests.agents.sb3.quick import IMPROVED_ACTIONS, QUICK, STATES, TARGETS, quick_agent

BOX = spaces.Box(-np.inf, np.inf, (4,), np.float32)
every_kind = pytest.mark.parametrize("kind", QUICK)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_kind_of_stable_baselines3_is_tested_here() -> None:
    assert set(QUICK) == {name for name, kind in KINDS.items() if kind.extra == "sb3"}


@every_kind
def test_an_agent_satisfies_the_contract(kind: str) -> None:
    one = quick_agent(kind)
    for protocol in (BlackBoxAgent, Checkpointable, Exportable, Diagnosable):
        assert isinstance(one, protocol)
    values = one.q_values(STATES)
    assert (values.shape, values.dtype) == ((64, 2), np.float32)
    np.testing.assert_array_equal(values, quick_agent(kind).q_values(STATES))
    assert not np.array_equal(values, quick_agent(kind, seed=1).q_values(STATES))


@every_kind
def test_it_takes_exactly_the_steps_asked_for_however_they_are_divided(kind: str) -> None:
    whole, chunked = quick_agent(kind), quick_agent(kind)
    whole.self_learn(403)
    for env_steps in (1, 2, 150, 250):
        chunked.self_learn(env_steps)
    assert whole.diagnostics()["time/total_timesteps"] == 403
    assert whole._env.position() == chunked._env.position()
    assert whole.diagnostics() == chunked.diagnostics()
    answers = [greedy_answer_of(kind, each, STATES, 2) for each in (whole, chunked)]
    for one, other in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, other)


@every_kind
def test_agents_in_one_process_equal_agents_in_separate_processes(kind: str) -> None:
    together = [quick_agent(kind, seed=1), quick_agent(kind, seed=2, activation="elu")]
    for _ in range(3):
        for one in together:
            one.self_learn(70)
        for one in together:
            one.improve(STATES, IMPROVED_ACTIONS, TARGETS)
    script = (
        "import sys; sys.path.insert(0, '.'); import torch; torch.set_num_threads(1)\n"
        "from tests.agents.sb3.quick import *\n"
        f"one = quick_agent({kind!r}, seed=2, activation='elu')\n"
        "for _ in range(3):\n"
        "    one.self_learn(70); one.improve(STATES, IMPROVED_ACTIONS, TARGETS)\n"
        "sys.stdout.buffer.write(one.q_values(STATES).tobytes())"
    )
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert alone == together[1].q_values(STATES).tobytes()


@every_kind
def test_the_global_generators_do_not_change(kind: str, tmp_path: Path) -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seed_all() -> None:
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        torch.manual_seed(3)

    seed_all()
    expected = draws()
    seed_all()
    one = quick_agent(kind)
    one.self_learn(100)
    one.improve(STATES, IMPROVED_ACTIONS, TARGETS)
    one.save(tmp_path)
    one.restore(tmp_path)
    greedy_answer_of(kind, one, STATES, 2)
    assert draws() == expected


@every_kind
@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3"])
def test_a_restored_agent_continues_bit_for_bit(kind: str, env_id: str, tmp_path: Path) -> None:
    original, restored = quick_agent(kind, 1, env_id), quick_agent(kind, 2, env_id)
    A = original._env.action_space.n
    states = np.stack([original._env.observation_space.sample() for _ in range(32)])
    actions, targets = np.arange(32) % 2, np.linspace(0, 1, 32, dtype=np.float32)
    original.self_learn(151)
    original.improve(states, actions, targets)
    original.save(tmp_path)
    restored.restore(tmp_path)
    for one in (original, restored):
        one.self_learn(333)
        one.improve(states, actions, targets)
        one.self_learn(20)
    answers = [greedy_answer_of(kind, each, states, A) for each in (original, restored)]
    for ours, theirs in zip(*answers, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert restored._env.position() == original._env.position()
    assert restored.diagnostics() == original.diagnostics()


@every_kind
def test_improvement_regresses_at_the_chosen_actions(kind: str) -> None:
    learner = quick_agent(kind, improvement_steps=500, improvement_learning_rate=1e-2)
    targets = np.where(IMPROVED_ACTIONS == 0, 2.0, -1.0).astype(np.float32)
    rows = np.arange(len(STATES))
    before = learner.q_values(STATES)
    learner.improve(STATES, IMPROVED_ACTIONS, targets)
    after = learner.q_values(STATES)
    assert np.abs(after[rows, IMPROVED_ACTIONS] - targets).mean() < 0.1
    assert np.abs(before[rows, IMPROVED_ACTIONS] - targets).mean() > 0.5


@every_kind
def test_the_library_loads_what_is_exported(kind: str, tmp_path: Path) -> None:
    learner = quick_agent(kind)
    learner.self_learn(100)
    learner.export(tmp_path)
    expected = greedy_answer_of(kind, learner, STATES, 2)
    predicted, _ = (
        type(learner._model).load(tmp_path / "model.zip").predict(STATES, deterministic=True)
    )
    np.testing.assert_array_equal(predicted, expected.actions)
    policy = load_policy(kind, tmp_path, BOX)
    assert policy is not None
    for one, other in zip(policy(STATES), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("exported", "kind", "missing"),
    [
        ("sb3-dqn", "dqn", "policy of an agent of kind 'dqn'"),
        ("sb3-dqn", "tabular", "policy of an agent of kind 'tabular'"),
        ("sb3-dqn", "sb3-ppo", "model of stable-baselines3's PPO"),
        ("sb3-ppo", "sb3-dqn", "model of stable-baselines3's DQN"),
        ("sb3-dqn", "sb3-qrdqn", "model of stable-baselines3's QRDQN"),
    ],
)
def test_a_policy_of_another_kind_is_refused(
    exported: str, kind: str, missing: str, tmp_path: Path
) -> None:
    quick_agent(exported).export(tmp_path)
    with pytest.raises(AgentRefused, match=f"{re.escape(str(tmp_path))} holds no {missing}"):
        load_policy(kind, tmp_path, BOX)


@every_kind
def test_it_learns_from_discrete_observations(kind: str) -> None:
    learner = quick_agent(kind, env_id="FrozenLake-v1")
    learner.self_learn(100)
    answer = greedy_answer_of(kind, learner, np.arange(16), 4)
    assert answer.values.shape == (16, 4)
    learner.improve(np.arange(16), np.zeros(16, dtype=np.int64), np.ones(16, dtype=np.float32))


@every_kind
def test_it_learns_from_images(kind: str) -> None:
    learner = quick_agent(kind, env_id="tests.agents.sb3.pixels:Pixels-v0", **small(kind))
    learner.self_learn(70)
    images = np.random.default_rng(0).integers(256, size=(3, *SHAPE)).astype(np.uint8)
    assert greedy_answer_of(kind, learner, images, 2).values.shape == (3, 2)


def small(kind: str) -> dict[str, int]:
    return {"buffer_size": 100} if "buffer_size" in QUICK[kind] else {}


@every_kind
@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "Adam", "optimizer_kwargs": {"momentum": 0.9}}, {"device": "abacus"}],
)
def test_settings_that_the_library_refuses_raise_agent_refused(
    kind: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(AgentRefused, match="stable-baselines3 refuses"):
        quick_agent(kind, **settings)


@every_kind
def test_it_leaves_no_temporary_directories(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    learner = quick_agent(kind)
    learner.self_learn(60)
    learner.self_learn(60)
    assert list(tmp_path.iterdir()) == []
