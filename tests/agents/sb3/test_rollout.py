"""What is special in PPO and A2C as black boxes: the Q-head, the policy, rollouts across phases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.monitor import Monitor

from fedhql.agents.sb3.policy_step import drawn_towards, mean_kl
from fedhql.environments.make import make_environment
from fedhql.environments.replayable import ReplayableEnvironment
from tests.agents.sb3.quick import IMPROVED_ACTIONS, STATES, TARGETS, quick_agent

both_kinds = pytest.mark.parametrize("kind", ["sb3-ppo", "sb3-a2c"])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def log_policy(learner: Any) -> torch.Tensor:
    """Return log π(a|s) at the states: (B, A)."""
    with torch.no_grad():
        return learner._model.policy.get_distribution(torch.as_tensor(STATES)).distribution.logits


@pytest.mark.parametrize(
    ("kind", "theirs", "own"),
    [
        ("sb3-ppo", PPO, {"n_steps": 64, "batch_size": 16, "n_epochs": 4}),
        ("sb3-a2c", A2C, {}),
    ],
)
def test_it_learns_as_stable_baselines3_itself_does(kind: str, theirs: Any, own: Any) -> None:
    """With the same seeds, policy and critic equal those of one call of `learn`."""
    ours = quick_agent(kind, seed=7)
    for env_steps in (100, 28, 192):
        ours.self_learn(env_steps)
    env = ReplayableEnvironment(Monitor(make_environment("CartPole-v1")), 7)
    other = theirs("MlpPolicy", env, policy_kwargs={"net_arch": [16]}, seed=7, device="cpu", **own)
    other.learn(320)
    assert other._n_updates > 0
    with torch.no_grad():
        expected = other.policy.get_distribution(torch.as_tensor(STATES)).distribution.logits
        assert torch.equal(log_policy(ours), expected)
        critics = (
            each.policy.predict_values(torch.as_tensor(STATES)) for each in (ours._model, other)
        )
        assert torch.equal(*critics)


@both_kinds
def test_it_acts_by_the_mode_of_its_policy_and_answers_with_its_head(kind: str) -> None:
    learner = quick_agent(kind)
    learner.self_learn(200)
    np.testing.assert_array_equal(learner.act(STATES), log_policy(learner).argmax(dim=1).numpy())
    before = learner.act(STATES)
    with torch.no_grad():
        learner._head.network[-1].bias[0] += 100
    assert (learner.q_values(STATES).argmax(axis=1) == 0).all()
    np.testing.assert_array_equal(learner.act(STATES), before)


@both_kinds
def test_a_phase_may_end_inside_a_rollout(kind: str, tmp_path: Path) -> None:
    learner, restored = quick_agent(kind, n_steps=64), quick_agent(kind, 1, n_steps=64)
    learner.self_learn(63)
    before = log_policy(learner)
    assert learner.diagnostics()["train/n_updates"] == 0
    learner.save(tmp_path)
    restored.restore(tmp_path)
    for each in (learner, restored):
        each.self_learn(1)
        assert each.diagnostics()["train/n_updates"] > 0
    assert torch.equal(log_policy(learner), log_policy(restored))
    assert not torch.equal(log_policy(learner), before)


@both_kinds
def test_the_head_learns_the_advantages_of_the_last_rollouts(kind: str) -> None:
    """It predicts the noisy returns better than the best constant, whose error is their variance.

    The policy and its critic hardly move, so all remembered advantages are of one policy.
    """
    fixed: dict[str, Any] = {"n_steps": 128, "gae_lambda": 1.0, "learning_rate": 1e-9}
    learner = quick_agent(kind, **fixed, q_memory=512, q_learning_rate=1e-2, q_epochs=20)
    learner.self_learn(640)
    head = learner._head
    states, actions = head._features.numpy(), head._actions.numpy()
    returns = head._advantages.numpy() + learner._critic(states).numpy()
    assert len(returns) == 512
    answered = np.take_along_axis(learner.q_values(states), actions, axis=1)
    assert np.mean((answered - returns) ** 2) < returns.var()


@both_kinds
def test_improvement_draws_the_policy_towards_the_better_action(kind: str) -> None:
    learner = quick_agent(kind, policy_improvement_kl_limit=0.01)
    better = (STATES[:, 2] > 0).astype(np.int64)
    states, actions = np.concatenate([STATES, STATES]), np.repeat([0, 1], 64)
    targets = (actions == np.tile(better, 2)).astype(np.float32)

    def towards_better() -> float:
        chosen = log_policy(learner).exp()[torch.arange(64), torch.as_tensor(better)]
        return float(chosen.mean())

    critic = learner._model.policy.predict_values(torch.as_tensor(STATES)).detach()
    probabilities = [towards_better()]
    for _ in range(40):
        before = log_policy(learner)
        learner.improve(states, actions, targets)
        assert 0 < mean_kl(before, log_policy(learner)) <= 0.01
        probabilities.append(towards_better())
    assert probabilities[-1] > probabilities[0] + 0.2
    assert torch.equal(critic, learner._model.policy.predict_values(torch.as_tensor(STATES)))


@both_kinds
@pytest.mark.parametrize("certainty", [0, 20])  # at 20, rounding hides the KL of a step
def test_a_limit_of_0_leaves_the_policy_to_self_learning(kind: str, certainty: float) -> None:
    learner = quick_agent(kind, policy_improvement_kl_limit=0)
    with torch.no_grad():
        learner._model.policy.action_net.bias[0] += certainty
    policy, values = log_policy(learner), learner.q_values(STATES)
    for _ in range(10):
        learner.improve(STATES, IMPROVED_ACTIONS, TARGETS)
    assert torch.equal(log_policy(learner), policy)
    assert not np.array_equal(learner.q_values(STATES), values)


def test_the_wanted_policy_by_hand() -> None:
    """π = (½, ½), Q = (3, 1): advantages 1 and -1 have mean size 1, so wanted ∝ (e, 1/e)."""
    half = torch.log(torch.tensor([[0.5, 0.5]]))
    wanted = drawn_towards(half, torch.tensor([[3.0, 1.0]]), temperature=1.0)
    e = np.exp(1)
    np.testing.assert_allclose(wanted, [[e / (e + 1 / e), 1 / e / (e + 1 / e)]], rtol=1e-6)
    scaled = drawn_towards(half, torch.tensor([[300.0, 100.0]]), temperature=1.0)
    np.testing.assert_allclose(scaled, wanted, rtol=1e-6)
    same = drawn_towards(half, torch.tensor([[7.0, 7.0]]), temperature=1.0)
    np.testing.assert_allclose(same, [[0.5, 0.5]], rtol=1e-6)
