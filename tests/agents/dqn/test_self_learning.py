"""A phase equals stable-baselines3's loop in steps, replay memory, training and targets."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN

from fedhql.agents.dqn import exploration
from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.draws import chunk_draws, initial_parameters
from fedhql.agents.dqn.experience import Experience
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.network import Network
from fedhql.agents.dqn.numbers import numbers_of
from fedhql.agents.dqn.phases import advance, is_steady
from fedhql.agents.dqn.population import Dqn
from fedhql.environments.lanes import TwinLanes
from tests.agents.dqn.corridor import CORRIDOR, GOAL, LIMIT
from tests.agents.dqn.torch_reference import Floats, sb3_dqn, sb3_train, weights

LANES = TwinLanes(CORRIDOR)
SEEDS, PHASE, BUDGET, DISCOUNT = np.array([5, 6, 7, 8], dtype=np.uint32), 30, 60, 0.9
COMMON = DqnConfig(hidden=(4,), learning_rate=0.01, batch_size=5, exploration_final_eps=0.3)
# The memory overflows inside a chunk, the target moves at odd steps, and two gradient steps follow.
OVERFLOWING = replace(
    COMMON,
    buffer_size=15,
    train_freq=2,
    gradient_steps=2,
    learning_starts=11,
    target_update_interval=7,
)
# Learning starts at the end of a chunk that does not train yet; the target moves at every step.
FOLLOWING = replace(
    COMMON,
    activation="tanh",
    double=True,
    train_freq=3,
    learning_starts=6,
    target_update_interval=1,
    tau=0.05,
    exploration_fraction=0.7,
)
CONFIGS = pytest.mark.parametrize("config", [OVERFLOWING, FOLLOWING], ids=["overflow", "follow"])
# ε falls in each of the two phases, and there is no warm-up.
PHASED = replace(
    OVERFLOWING,
    exploration_annealing="phase",
    exploration_fraction=0.7,
    warm_up="policy",
    learning_starts=0,
)


def lanes_of(config: DqnConfig) -> list[DqnConfig]:
    """Return agents of one program that differ in their numbers."""
    other = replace(config, learning_rate=0.1, tau=0.1, exploration_final_eps=0.05)
    return [config, replace(other, max_grad_norm=0.1, exploration_initial_eps=0.8)] * 2


class Run:
    """Lanes of our own DQN, from the first step."""

    def __init__(self, config: DqnConfig) -> None:
        self.network = Network(2, config.hidden, 2, config.activation)
        capacity = min(config.buffer_size, BUDGET)
        self.dqn = Dqn.of(config, self.network, LANES, PHASE, capacity)
        self._numbers = numbers_of(
            lanes_of(config),
            discount=DISCOUNT,
            budget_env_steps=BUDGET,
            phase_env_steps=PHASE,
        )
        learner, experience = self.dqn.initialise(SEEDS, (self.network,))
        self.learner: Learner = learner
        self.experience: Experience = experience
        self.starts = np.array(experience.episodes.states)

    def draws(self, chunks: int) -> Floats:
        """Return the draws (C, L, W) from the program that agents use too."""
        at_once, words, keys = self.dqn.chunks, self.dqn.draws_a_chunk, self.experience.keys
        parts = [chunk_draws(keys, first, at_once, words) for first in range(0, chunks, at_once)]
        return np.concatenate(parts)

    def to(self, until: int) -> "Run":
        begin = int(self.experience.env_steps)
        self.learner, self.experience = advance(
            self.dqn, self.learner, self.experience, self._numbers, begin, until
        )
        return self


class Sb3Loop:
    """stable-baselines3's collect_rollouts and learn for one lane, with the lane's draws."""

    def __init__(self, config: DqnConfig, run: Run, lane: int) -> None:
        self.model: DQN = sb3_dqn(
            run.network,
            initial_parameters(run.network, int(SEEDS[lane])),
            double=config.double,
            gamma=DISCOUNT,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            target_update_interval=config.target_update_interval,
            tau=config.tau,
            exploration_initial_eps=config.exploration_initial_eps,
            exploration_final_eps=config.exploration_final_eps,
            exploration_fraction=config.exploration_fraction,
        )
        self.model.exploration_rate = config.exploration_initial_eps  # SB3 begins with 0
        self._config, self._draws_CW = config, run.draws(BUDGET)[:, lane]
        self.replay: Floats = np.zeros_like(run.experience.replay[lane])
        self.env_steps = self.updates = self._elapsed = 0
        self._state = tuple(run.starts[lane])

    def to(self, until: int) -> "Sb3Loop":
        while self.env_steps < until:
            chunk, offset = divmod(self.env_steps, self._config.train_freq)
            draws = self._draws_CW[chunk][3 * offset : 3 * offset + 3]
            self._step(draws[0], draws[1], draws[2:])
            self._update_progress()
            self.model._on_step()  # updates the exploration rate and the target network
            if (
                self.env_steps % self._config.train_freq == 0
                and self.env_steps > self._config.learning_starts
            ):
                self._train(self._draws_CW[chunk][3 * self._config.train_freq :])
        return self

    def _update_progress(self) -> None:
        """Let SB3's schedule run over the budget, or over each phase, as calls of `learn` do."""
        if self._config.exploration_annealing == "phase":
            self.model._update_current_progress_remaining(self.env_steps % PHASE, PHASE)
        else:
            self.model._update_current_progress_remaining(self.env_steps, BUDGET)

    def _step(self, dice: Any, uniform: Any, restart: Any) -> None:
        state = np.array(CORRIDOR.observe(self._state))
        explores = self.env_steps < self._config.learning_starts
        if explores or dice < self.model.exploration_rate:
            action = int(uniform * 2)
        else:
            with torch.no_grad():
                action = int(self.model.q_net(torch.tensor(state[None])).argmax())
        then, reward, terminated = _step_twin(self._state, action)
        seen = np.array(CORRIDOR.observe(then))
        row = np.concatenate([state, seen, [action, reward, terminated]])
        self.replay[self.env_steps % len(self.replay)] = row
        self.env_steps, self._elapsed, self._state = self.env_steps + 1, self._elapsed + 1, then
        if terminated or self._elapsed == LIMIT:
            self._elapsed, self._state = 0, CORRIDOR.start(tuple(jnp.asarray(restart)))

    def _train(self, draws: Any) -> None:
        filled = min(self.env_steps, len(self.replay))
        for picks in draws.reshape(self._config.gradient_steps, self._config.batch_size):
            sb3_train(self.model, self.replay[(picks * filled).astype(int)])
            self.updates += 1


_step_twin: Any = jax.jit(CORRIDOR.step)


@pytest.mark.parametrize(
    "config", [OVERFLOWING, FOLLOWING, PHASED], ids=["overflow", "follow", "phased"]
)
def test_a_phase_equals_stable_baselines3s_loop(config: DqnConfig) -> None:
    """They are compared before learning starts, inside a chunk and at the end."""
    ours = Run(config)
    theirs = [Sb3Loop(c, ours, lane) for lane, c in enumerate(lanes_of(config))]
    for until in (5, 6, 31, 34, BUDGET):
        ours.to(until)
        for lane, loop in enumerate(theirs):
            loop.to(until)
            assert int(ours.learner.updates[lane]) == loop.updates
            np.testing.assert_allclose(ours.experience.replay[lane], loop.replay, atol=1e-6)
            online, target = loop.model.q_net, loop.model.q_net_target
            # Differences accumulate over two dozen steps of Adam that sum in another order.
            for mine, module in [(ours.learner.parameters, online), (ours.learner.target, target)]:
                np.testing.assert_allclose(mine[lane], weights(module), rtol=1e-3, atol=2e-5)
    chunks = BUDGET // config.train_freq - config.learning_starts // config.train_freq
    assert theirs[0].updates == chunks * config.gradient_steps


@CONFIGS
def test_nothing_trains_before_learning_starts(config: DqnConfig) -> None:
    ours = Run(config)
    before = np.array(ours.learner.parameters)
    last = config.learning_starts // config.train_freq * config.train_freq
    ours.to(last)
    np.testing.assert_array_equal(ours.learner.parameters, before)
    assert not ours.learner.updates.any()
    ours.to(last + config.train_freq)
    assert ours.learner.updates.tolist() == [config.gradient_steps] * 4


def test_the_memory_holds_true_transitions() -> None:
    """They follow the rules of the corridor, whatever program stored them."""
    rows_LTR = np.asarray(Run(FOLLOWING).to(PHASE).to(BUDGET).experience.replay)
    truncated = 0
    for rows_TR in rows_LTR:
        length = 0
        for now, following in zip(rows_TR, [*rows_TR[1:], None], strict=True):
            x, _, then, _, action, reward, terminated = now
            assert then == pytest.approx(x + (0.2 if action else -0.1), abs=1e-6)
            assert bool(terminated) is bool(then >= GOAL)
            assert reward == pytest.approx(1.0 if terminated else -then, abs=1e-6)
            length += 1
            ended = terminated or length == LIMIT
            truncated += bool(ended and not terminated)
            if following is not None:
                assert (following[0] == then) is not ended
            if ended:
                length = 0
    assert truncated > 0
    assert rows_LTR[:, :, 6].sum() > 0


def test_actions_are_uniform_before_learning_starts() -> None:
    """The draws are those that agents use, and each agent has its own."""
    draws_CLW = Run(FOLLOWING).draws(500)
    for draws in np.moveaxis(draws_CLW, 1, 0):
        actions = np.asarray(exploration.uniform(3, draws))
        shares = np.bincount(actions.ravel(), minlength=3) / actions.size
        # 6 standard errors of a share over 7,000 draws are 0.034.
        np.testing.assert_allclose(shares, 1 / 3, atol=0.034)
    assert len(np.unique(draws_CLW)) > 0.99 * draws_CLW.size


def test_the_gpu_program_for_a_steady_phase_learns_the_same(monkeypatch: Any) -> None:
    """The program without conditions gives the same result as the one with conditions."""
    conditional = Run(FOLLOWING).to(PHASE).to(BUDGET)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    steady = Run(FOLLOWING)
    assert not is_steady(steady.dqn, 0, PHASE)  # learning has not begun
    assert is_steady(steady.dqn, PHASE, BUDGET)
    steady.to(PHASE).to(BUDGET)
    for one, other in zip(
        jax.tree.leaves((conditional.learner, conditional.experience)),
        jax.tree.leaves((steady.learner, steady.experience)),
        strict=True,
    ):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def _same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_lane_does_not_depend_on_other_lanes() -> None:
    """The first agent is the same bit for bit if the second one diverges."""
    one, other = Run(OVERFLOWING), Run(OVERFLOWING)
    other.learner = other.learner._replace(
        parameters=other.learner.parameters.at[1].set(np.nan),
    )
    for run in (one, other):
        run.to(PHASE)

    def first(tree: Any) -> NDArray[Any]:
        return jax.tree.map(lambda array: array[0] if array.ndim else array, tree)

    _same(first((one.learner, one.experience)), first((other.learner, other.experience)))
    assert np.isnan(other.learner.parameters[1]).all()
