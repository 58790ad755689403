"""The mixed federations of unlike agents run, and their linear agent keeps the contract."""

import csv
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from examples.mixed.fourier import FourierAgent
from fedhql.settings.experiment import read_settings_file
from tests.cli.running import succeed

MIXED = Path(__file__).parents[2] / "examples/mixed"
TASKS = ("cartpole", "acrobot", "mountaincar")
NAMES = ["dqn", "linear", "qrdqn", "ppo"]


@pytest.mark.parametrize("task", TASKS)
def test_unlike_agents_federate(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install 'fedhql[sb3]'")
    monkeypatch.setenv("PYTHONPATH", str(MIXED.parents[1]))
    changes = (
        "federation.self_learning_env_steps=64",
        "federation.query_batch=4",
        "federation.horizon_steps=2",
        "evaluation.interval_env_steps=66",
        "evaluation.episodes=1",
        "evaluation.best_episodes=1",
        "agents.4.n_steps=64",
    )
    settings = [option for change in changes for option in ("--set", change)]
    file, run = MIXED / f"{task}.toml", tmp_path / "run"
    output = succeed(
        "run", file, "--out", "run", "--budget", "132", "--no-figures", *settings, cwd=tmp_path
    )
    assert all(name in output for name in NAMES)
    rows = rows_of(run / "evaluations.csv")
    assert {row["agent"] for row in rows if row["arm"] == "fedhql"} == {*NAMES, "consensus"}
    assert len(rows_of(run / "federation.csv")) == 2


def linear(task: str, seed: int = 100) -> FourierAgent:
    settings = read_settings_file(MIXED / f"{task}.toml")
    (agent,) = (agent for agent in settings.agents if agent.name == "linear")
    environment = settings.environment
    return FourierAgent(
        env_id=environment.id,
        discount=environment.discount,
        seed=seed,
        **agent.options,
    )


def test_the_linear_agent_moves_towards_targets() -> None:
    agent = linear("cartpole")
    states = np.random.default_rng(0).uniform(-0.1, 0.1, (8, 4)).astype(np.float32)
    actions, targets = np.arange(8) % 2, np.full(8, 5.0, dtype=np.float32)
    before = agent.q_values(states)
    assert before.shape == (8, 2)
    assert before.dtype == np.float32
    for _ in range(5):
        agent.improve(states, actions, targets)
    after = agent.q_values(states)
    rows = np.arange(8)
    assert (abs(after[rows, actions] - 5) < abs(before[rows, actions] - 5)).all()


@pytest.mark.parametrize("env_steps", [40, 400])  # inside the first episode, and after some
def test_a_restored_linear_agent_goes_on_as_the_saved_one(tmp_path: Path, env_steps: int) -> None:
    agent, other = linear("cartpole"), linear("cartpole", seed=1)
    agent.self_learn(env_steps)
    agent.save(tmp_path)
    other.restore(tmp_path)
    for each in (agent, other):
        each.self_learn(300)
    states = np.random.default_rng(0).uniform(-1, 1, (8, 4))
    np.testing.assert_array_equal(agent.q_values(states), other.q_values(states))


def test_the_linear_agent_learns_mountaincar_alone() -> None:
    agent, env = linear("mountaincar"), gym.make("MountainCar-v0")
    agent.self_learn(20_000)
    arrived = 0
    for seed in range(5):
        state, ended = env.reset(seed=seed)[0], False
        while not ended:
            action = int(agent.q_values(state[None]).argmax())
            state, _, terminated, truncated, _ = env.step(action)
            ended, arrived = terminated or truncated, arrived + terminated
    assert arrived >= 4  # a random policy never arrives within the 200 steps of an episode


def test_the_search_used_no_seed_of_the_report() -> None:
    rows = rows_of(MIXED.parents[1] / "docs/agents/search.csv")
    assert {row["task"] for row in rows} == set(TASKS)
    assert {int(row["seed"]) for row in rows} == {100, 101}


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))
