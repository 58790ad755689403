"""Our DQN in an environment without a twin, where it acts step by step in NumPy."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from stable_baselines3 import DQN

from fedhql.agents.dqn.agent import DqnAgent
from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.observations import Encoder
from fedhql.environments.make import Environment, make_environment
from tests.agents.dqn.corridor import GOAL, LIMIT, corridor
from tests.agents.dqn.torch_reference import sb3_dqn, sb3_train, weights

COMMON: dict[str, Any] = {"hidden": (8,), "learning_rate": 0.01, "improvement_steps": 3}


def agent(env: Environment, seed: int = 0, **settings: Any) -> DqnAgent:
    config = DqnConfig(**(COMMON | settings))
    return DqnAgent(
        config, env, None, discount=0.9, budget_env_steps=5_000, phase_env_steps=100, seed=seed
    )


def lake(**options: Any) -> Environment:
    return make_environment("FrozenLake-v1", options)


@pytest.mark.parametrize("double", [False, True])
def test_it_learns_by_stable_baselines3s_loop(double: bool) -> None:
    """With the same steps and batches, SB3's networks equal ours after every step."""
    settings: dict[str, Any] = {"learning_rate": 0.01, "target_update_interval": 7, "tau": 0.6}
    counted = {"train_freq": 3, "gradient_steps": 2, "learning_starts": 6}
    ours = agent(corridor(), batch_size=5, buffer_size=20, double=double, **settings, **counted)
    experience: Any = ours._experience
    start = np.asarray(ours._learner.parameters)
    theirs: DQN = sb3_dqn(ours.network, start, double=double, gamma=0.9, **settings)
    draw, drawn = experience._batches, []

    def spied() -> Any:
        drawn.append(draw())
        return drawn[-1]

    experience._batches = spied
    updates = 0
    for env_step in range(1, 61):
        ours.self_learn(1)
        theirs._on_step()
        filled = {row.tobytes() for row in experience._replay[: min(env_step, 20)]}
        if env_step % 3 == 0 and env_step > 6:
            (batches,) = drawn
            for rows_BR in batches:
                assert {row.tobytes() for row in rows_BR} <= filled
                sb3_train(theirs, rows_BR)
            updates += 2
        else:
            assert not drawn
        drawn.clear()
        assert int(ours._learner.updates) == updates
        for mine, module in [
            (ours._learner.parameters, theirs.q_net),
            (ours._learner.target, theirs.q_net_target),
        ]:
            np.testing.assert_allclose(mine, weights(module), rtol=1e-3, atol=2e-5)
    assert updates == 36


def test_the_memory_holds_true_transitions() -> None:
    learner = agent(corridor(), learning_starts=100, buffer_size=70)
    learner.self_learn(100)
    experience: Any = learner._experience
    rows = np.roll(experience._replay, -30, axis=0)  # rolled so that the oldest row is first
    assert set(rows[:, 4]) == {0, 1}
    lengths, length = [], 0
    for now, following in pairwise(rows):
        x, then, action, terminated = now[0], now[2], now[4], now[6]
        assert then == pytest.approx(x + (0.2 if action else -0.1), abs=1e-6)
        assert bool(terminated) is bool(then >= GOAL)
        length += 1
        if following[0] != then:
            lengths.append((length, bool(terminated)))
            length = 0
    whole = lengths[1:]  # only the end of the first episode is stored
    assert all(terminated or length == LIMIT for length, terminated in whole)
    assert {terminated for _, terminated in whole} == {True, False}


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("FrozenLake-v1", {"exploration": "boltzmann"}),
        ("LunarLander-v3", {"exploration_fraction": 0.05}),
        ("FrozenLake-v1", {"exploration": "ucb"}),
        ("FrozenLake-v1", {"exploration_annealing": "phase", "exploration_fraction": 0.7}),
    ],
)
def test_a_restored_agent_continues_bit_for_bit(
    env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """It is saved inside an episode; the memory overflows."""
    quick = {"learning_starts": 50, "buffer_size": 200, "target_update_interval": 60}
    original, restored = (
        agent(make_environment(env_id), seed, **quick, **settings) for seed in (1, 2)
    )
    space = make_environment(env_id).observation_space
    states = np.stack([space.sample() for _ in range(32)])
    exchange = states, np.arange(32) % 2, np.linspace(0, 1, 32, dtype=np.float32)
    original.self_learn(151)
    original.improve(*exchange)
    original.save(tmp_path)
    restored.restore(tmp_path)
    for one in (original, restored):
        one.self_learn(170)
        one.improve(*exchange)
        one.self_learn(1)
    np.testing.assert_array_equal(restored.q_values(states), original.q_values(states))
    assert restored.diagnostics() == original.diagnostics()


def test_the_division_of_steps_does_not_matter() -> None:
    whole, divided = (agent(lake(), exploration="ucb", learning_starts=20) for _ in range(2))
    whole.self_learn(200)
    for env_steps in (1, 6, 93, 100):
        divided.self_learn(env_steps)
    states = np.arange(16)
    np.testing.assert_array_equal(whole.q_values(states), divided.q_values(states))


@pytest.mark.parametrize(
    "exploration",
    [
        "epsilon-greedy",
        pytest.param("boltzmann", marks=pytest.mark.slow),
        pytest.param("ucb", marks=pytest.mark.slow),
    ],
)
def test_it_learns_to_cross_a_frozen_lake(exploration: str) -> None:
    """A wrong step can end the episode; random actions cross it about once in 100 episodes."""
    learner = agent(
        lake(is_slippery=False),
        hidden=(32,),
        learning_rate=0.003,
        exploration=exploration,
        exploration_fraction=0.8,
        temperature=0.05,
        confidence=0.3,
        learning_starts=1_000,
        target_update_interval=50,
        train_freq=2,
    )
    learner.self_learn(5_000)  # each of four seeds tried crossed it after 3,000
    env = lake(is_slippery=False)
    state, earned, ended = env.reset()[0], 0.0, False
    while not ended:
        action = learner.q_values(np.array([state])).argmax()
        state, reward, terminated, truncated, _ = env.step(action)
        earned, ended = earned + float(reward), terminated or truncated
    assert earned == 1.0


def test_actions_and_episodes_use_different_random_streams() -> None:
    """Otherwise exploration would depend on the seeds of the episodes."""
    experience: Any = agent(lake())._experience
    assert experience._rng.bit_generator.state != experience._env._seeds.bit_generator.state


@pytest.mark.parametrize("exploration", ["epsilon-greedy", "boltzmann"])
def test_a_diverged_agent_continues_to_learn(exploration: str) -> None:
    """It does so in a compiled phase and in stable-baselines3 too; a server leaves it out."""
    learner = agent(lake(), exploration=exploration, learning_starts=0)
    learner._learner = learner._learner._replace(
        parameters=jnp.full_like(learner._learner.parameters, np.nan)
    )
    learner.self_learn(1)


def test_observations_are_encoded_as_in_stable_baselines3() -> None:
    """Discrete observations become one-hot, from any start; arrays become one row."""
    from gymnasium import spaces

    discrete = Encoder(spaces.Discrete(4, start=-1))
    np.testing.assert_array_equal(discrete.batch(np.array([-1, 2])), [[1, 0, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(discrete.one(np.int64(0)), [0, 1, 0, 0])
    image = Encoder(spaces.Box(0, 255, (2, 3), np.uint8))
    rows = image.batch(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    np.testing.assert_array_equal(rows, np.arange(12).reshape(2, 6))
    assert image.size == 6
    assert rows.dtype == np.float32
