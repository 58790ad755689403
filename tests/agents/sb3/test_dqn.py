"""What is special in stable-baselines3's DQN as a black box."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from fedhql.agents.dqn.config import REMEMBERED_BROADCASTS
from fedhql.agents.sb3.replay_agent import ReplayAgent
from fedhql.environments.make import make_environment
from fedhql.errors import AgentRefused
from tests.agents.sb3.quick import IMPROVED_ACTIONS, STATES, TARGETS, quick_agent


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def agent(seed: int = 0, **settings: Any) -> ReplayAgent:
    learner = quick_agent("sb3-dqn", seed, **settings)
    assert isinstance(learner, ReplayAgent)
    return learner


def test_it_learns_as_stable_baselines3_itself_does() -> None:
    """With the same seeds, the network equals that of one call of DQN.learn."""
    ours = agent(seed=7, exploration_final_eps=0.1, learning_rate=1e-3)
    ours.self_learn(400)

    from stable_baselines3.common.monitor import Monitor

    from fedhql.environments.replayable import ReplayableEnvironment

    env = ReplayableEnvironment(Monitor(make_environment("CartPole-v1")), 7)
    theirs = DQN(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        buffer_size=5_000,
        learning_starts=50,
        target_update_interval=100,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [16]},
        seed=7,
        device="cpu",
    )
    theirs.learn(400)
    with torch.no_grad():
        expected = theirs.q_net(torch.as_tensor(STATES)).numpy()
    np.testing.assert_array_equal(ours.q_values(STATES), expected)


def test_a_full_replay_buffer_is_restored(tmp_path: Path) -> None:
    original, restored = agent(1, buffer_size=100), agent(2, buffer_size=100)
    original.self_learn(250)
    original.save(tmp_path)
    restored.restore(tmp_path)
    original.self_learn(60)
    restored.self_learn(60)
    np.testing.assert_array_equal(restored.q_values(STATES), original.q_values(STATES))


@pytest.mark.parametrize(("unit", "scale"), [(8.0, 1), (1.0, 4), (0.1, 10)])
def test_larger_values_have_a_larger_learning_rate(unit: float, scale: float) -> None:
    """The learning rate is small again for smaller values afterwards."""
    scaled = agent(improvement_learning_rate=1e-3, improvement_value_unit=unit)
    same = agent(improvement_learning_rate=1e-3 * scale)
    actions = np.zeros(64, dtype=np.int64)
    for learner in (scaled, same):
        learner.improve(STATES, actions, np.full(64, -4, dtype=np.float32))
    np.testing.assert_allclose(scaled.q_values(STATES), same.q_values(STATES), rtol=1e-5)
    scaled.improve(STATES, actions, np.zeros(64, dtype=np.float32))
    assert [group["lr"] for group in scaled._improver.param_groups] == [1e-3]


def test_silent_units_are_revived_at_the_first_improvement_since_self_learning(
    tmp_path: Path,
) -> None:
    chosen: dict[str, Any] = {"improvement_revives_units": True, "improvement_steps": 1}
    learner = agent(1, learning_starts=1000, **chosen)

    def first_layer() -> torch.nn.Linear:
        layer = learner._online.q_net[0]
        assert isinstance(layer, torch.nn.Linear)
        return layer

    def silent() -> int:
        with torch.no_grad():
            return int((~(first_layer()(torch.as_tensor(STATES)) > 0).any(dim=0)).sum())

    exchange = STATES, IMPROVED_ACTIONS, TARGETS
    for _ in range(REMEMBERED_BROADCASTS):
        learner.improve(*exchange)
    with torch.no_grad():
        first_layer().bias[:8] = -100
    learner.improve(*exchange)
    assert silent() == 8  # not the first improvement of this round
    learner.self_learn(1)
    learner.save(tmp_path)
    original, restored = learner, agent(2, learning_starts=1000, **chosen)
    restored.restore(tmp_path)
    for learner in (original, restored):
        assert silent() == 8
        learner.improve(*exchange)
        assert silent() == 0
    np.testing.assert_array_equal(restored.q_values(STATES), original.q_values(STATES))


@pytest.mark.parametrize("follows", [True, False])
def test_the_target_network_follows_improvement_if_the_settings_say_so(follows: bool) -> None:
    learner = agent(target_follows_improvement=follows, learning_starts=1000)
    learner.improve(STATES, np.zeros(64, dtype=np.int64), np.ones(64, dtype=np.float32))
    learner.self_learn(1)
    with torch.no_grad():
        target = learner._model.q_net_target(torch.as_tensor(STATES)).numpy()
    assert np.array_equal(target, learner.q_values(STATES)) is follows


def test_epsilon_is_constant_or_annealed_over_the_budget() -> None:
    constant = agent(exploration_final_eps=0.07)
    annealed = agent(exploration_final_eps=0.1, exploration_fraction=0.1)  # of 10,000 steps
    for env_steps in (250, 250):  # SB3's own schedule would restart in the second call
        constant.self_learn(env_steps)
        annealed.self_learn(env_steps)
    assert constant.diagnostics()["rollout/exploration_rate"] == 0.07
    assert annealed.diagnostics()["rollout/exploration_rate"] == pytest.approx(0.55)
    annealed.self_learn(600)
    assert annealed.diagnostics()["rollout/exploration_rate"] == pytest.approx(0.1)


def test_epsilon_can_fall_again_in_each_phase(tmp_path: Path) -> None:
    """Phases have 200 env steps. SB3 acts with the rate that its last step has left."""
    phased: dict[str, Any] = {"exploration_annealing": "phase", "exploration_fraction": 0.5}
    learner, restored = (agent(exploration_final_eps=0.1, **phased) for _ in range(2))
    rates = []
    for env_steps in (50, 100, 50, 50):
        learner.self_learn(env_steps)
        rates.append(learner.diagnostics()["rollout/exploration_rate"])
    assert rates == pytest.approx([0.55, 0.1, 1.0, 0.55])
    learner.save(tmp_path)
    restored.restore(tmp_path)
    for each in (learner, restored):
        each.self_learn(100)
    np.testing.assert_array_equal(restored.q_values(STATES), learner.q_values(STATES))


@pytest.mark.parametrize("warm_up", ["uniform", "policy"])
def test_warm_up_says_how_it_acts_before_learning_starts(warm_up: str) -> None:
    learner = agent(exploration_final_eps=0.0, learning_starts=400, warm_up=warm_up)
    learner.self_learn(300)
    replay: Any = learner._model.replay_buffer
    actions = replay.actions[:300].ravel()
    greedy = learner.q_values(replay.observations[:300, 0]).argmax(axis=1)
    if warm_up == "policy":
        np.testing.assert_array_equal(actions, greedy)
    else:  # 6 standard errors of a share over 300 draws are 0.173
        assert (actions == greedy).mean() == pytest.approx(0.5, abs=0.173)
    assert learner.diagnostics()["train/n_updates"] == 0


def test_a_policy_that_does_not_match_the_observations_is_refused() -> None:
    with pytest.raises(AgentRefused, match="stable-baselines3 refuses"):
        agent(policy="CnnPolicy")


def test_network_activation_and_optimiser_follow_the_settings() -> None:
    learner = agent(
        hidden=(8, 8, 8),
        activation="silu",
        optimizer="SGD",
        optimizer_kwargs={"momentum": 0.9},
    )
    layers = [type(layer).__name__ for layer in learner._online.q_net]
    assert layers == ["Linear", "SiLU"] * 3 + ["Linear"]
    optimizer = learner._model.policy.optimizer
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9
    assert isinstance(learner._improver, torch.optim.Adam)


def test_stable_baselines3_loads_the_exported_model(tmp_path: Path) -> None:
    learner = agent(exploration_final_eps=0.07)
    learner.self_learn(100)
    learner.export(tmp_path)
    loaded = DQN.load(tmp_path / "model.zip", device="cpu")
    greedy, _ = loaded.predict(STATES, deterministic=True)
    np.testing.assert_array_equal(greedy, learner.q_values(STATES).argmax(axis=1))
    assert loaded.exploration_schedule(1.0) == loaded.exploration_schedule(0.0) == 0.07


def test_silent_units_are_those_that_are_zero_at_the_last_states() -> None:
    learner = agent(hidden=(16, 8))
    learner.self_learn(300)
    assert 0 <= learner.diagnostics()["train/silent_units"] < 1
    layers: Any = learner._online.q_net
    with torch.no_grad():
        layers[0].bias.fill_(-1e6)
        layers[2].bias.fill_(1e6)
    assert learner.diagnostics()["train/silent_units"] == pytest.approx(16 / 24)
    tanh = agent(activation="tanh")
    tanh.self_learn(10)
    assert np.isnan(tanh.diagnostics()["train/silent_units"])
