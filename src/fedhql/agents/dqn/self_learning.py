"""Self-learning of a single DQN agent: in a compiled twin, or in any Gymnasium environment.

Both change a learner in the same way. With a twin, a whole phase is one compiled call. With a
Gymnasium environment, acting uses NumPy and only training is compiled, because a call of a compiled
program costs more than the forward pass of a small network.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from fedhql.agents import exploration
from fedhql.agents.dqn.checkpoint import load_experience, save_experience
from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.draws import visit_projection
from fedhql.agents.dqn.experience import Experience, last_states
from fedhql.agents.dqn.exploration import VISIT_CODE_BITS
from fedhql.agents.dqn.learner import (
    Learner,
    begin_self_learning,
    new_learner,
    train,
    update_target,
)
from fedhql.agents.dqn.network import Network
from fedhql.agents.dqn.numbers import Numbers
from fedhql.agents.dqn.observations import Encoder
from fedhql.agents.dqn.optimisers import optimisers_of
from fedhql.agents.dqn.phases import advance
from fedhql.agents.dqn.population import Dqn
from fedhql.environments.replayable import ReplayableEnvironment

_ACTIONS = 100  # a random stream of its own, apart from those in `draws`


class SelfLearning(Protocol):
    """An agent's experience and its environment."""

    env_steps: int

    def self_learn(self, learner: Learner, env_steps: int) -> Learner: ...

    def last_states(self, count: int) -> Any:
        """Return the states before the last `count` env steps: (S, D). The first may repeat."""

    def save(self, directory: Path) -> None: ...

    def restore(self, directory: Path) -> None: ...

    def close(self) -> None: ...


class CompiledSelfLearning:
    """Self-learning in a compiled twin, as a population of one agent."""

    def __init__(self, dqn: Dqn, numbers: Numbers, experience: Experience) -> None:
        self._dqn = dqn
        self._numbers: Numbers = _with_lane(numbers)
        self._experience = experience
        self.env_steps = 0

    def self_learn(self, learner: Learner, env_steps: int) -> Learner:
        lane = _with_lane(learner)
        end = self.env_steps + env_steps
        while self.env_steps < end:
            until = min(end, self.env_steps + self._dqn.phase_env_steps)
            lane, self._experience = advance(
                self._dqn, lane, self._experience, self._numbers, self.env_steps, until
            )
            self.env_steps = until
        return jax.tree.map(lambda array: array[0], lane)

    def last_states(self, count: int) -> Any:
        return np.asarray(last_states(self._experience, count)[0])

    def save(self, directory: Path) -> None:
        save_experience(directory, self._experience)

    def restore(self, directory: Path) -> None:
        self._experience = load_experience(directory, self._experience)
        self.env_steps = int(self._experience.env_steps)

    def close(self) -> None:
        pass


class HostSelfLearning:
    """Self-learning in a Gymnasium environment, step by step."""

    def __init__(
        self,
        network: Network,
        config: DqnConfig,
        numbers: Numbers,
        env: ReplayableEnvironment,
        encoder: Encoder,
        capacity: int,
        seed: int,
    ) -> None:
        self._network, self._config, self._numbers = network, config, numbers
        self._env, self._encoder = env, encoder
        period = int(numbers.anneal_period)
        self._annealing = exploration.Annealing(float(numbers.anneal_env_steps), period)
        self._rng = np.random.default_rng([seed, _ACTIONS])
        self._replay = np.zeros((capacity, 2 * encoder.size + 3), dtype=np.float32)
        self._visits = np.zeros((2**VISIT_CODE_BITS, network.outputs), dtype=np.int64)
        self._projection = visit_projection(seed, encoder.size)
        self._train = jax.jit(partial(_train, network, config, numbers))
        self._state: NDArray[np.float32] | None = None  # None: no episode has begun
        self.env_steps = 0

    def self_learn(self, learner: Learner, env_steps: int) -> Learner:
        learner = _begin(learner, self._numbers)
        layers, trainings = self._layers(learner), 0
        for _ in range(env_steps):
            self._step(layers)
            if self.env_steps % self._config.target_update_interval == 0:
                learner = _update_target(learner, self._numbers)
            due = self.env_steps > self._config.learning_starts
            if due and self.env_steps % self._config.train_freq == 0:
                parameters, optimizer, loss = self._train(
                    learner.parameters, learner.target, learner.optimizer, self._batches()
                )
                learner = learner._replace(parameters=parameters, optimizer=optimizer, loss=loss)
                layers, trainings = self._layers(learner), trainings + 1
        updates = learner.updates + trainings * self._config.gradient_steps
        return learner._replace(updates=updates)

    def _step(self, layers: Any) -> None:
        if self._state is None:
            self._state = self._encoder.one(self._env.reset()[0])
        action = self._action(layers, self._state)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        then = self._encoder.one(observation)
        row = self._replay[self.env_steps % len(self._replay)]
        D = len(then)
        row[:D], row[D : 2 * D] = self._state, then
        row[2 * D], row[2 * D + 1], row[2 * D + 2] = action, reward, terminated
        self._state = None if terminated or truncated else then
        self.env_steps += 1

    def _action(self, layers: Any, state: NDArray[np.float32]) -> int:
        config, rng = self._config, self._rng
        counts_A = self._visits[self._code(state)] if config.exploration == "ucb" else None
        if config.warm_up == "uniform" and self.env_steps < config.learning_starts:
            action = int(rng.integers(self._network.outputs))
        else:
            q_A = self._network.apply(layers, state[None])[0]
            match config.exploration:
                case "epsilon-greedy":
                    epsilon = exploration.annealed_epsilon(
                        config.exploration_final_eps,
                        config.exploration_initial_eps,
                        self._annealing,
                        self.env_steps,
                    )
                    action = exploration.epsilon_greedy(q_A, epsilon, rng)
                case "boltzmann":
                    action = exploration.boltzmann(q_A, config.temperature, rng)
                case _:
                    assert counts_A is not None
                    action = exploration.count_ucb(q_A, counts_A, config.confidence)
        if counts_A is not None:
            counts_A[action] += 1
        return action

    def _code(self, state: NDArray[np.float32]) -> int:
        return int(((self._projection @ state > 0) * 2 ** np.arange(VISIT_CODE_BITS)).sum())

    def _batches(self) -> NDArray[np.float32]:
        """Draw a batch for each gradient step: (gradient steps, B, R)."""
        filled = min(self.env_steps, len(self._replay))
        shape = (self._config.gradient_steps, self._config.batch_size)
        return self._replay[self._rng.integers(filled, size=shape)]

    def _layers(self, learner: Learner) -> Any:
        return self._network.unpack(np.asarray(learner.parameters))

    def last_states(self, count: int) -> Any:
        numbers = np.maximum(self.env_steps - 1 - np.arange(count), 0)
        return self._replay[numbers % len(self._replay), : self._encoder.size]

    def save(self, directory: Path) -> None:
        filled = min(self.env_steps, len(self._replay))
        np.save(directory / "replay.npy", self._replay[:filled])
        np.save(directory / "visits.npy", self._visits)
        np.save(directory / "projection.npy", self._projection)
        position = {
            "env_steps": self.env_steps,
            "rng": self._rng.bit_generator.state,
            "environment": self._env.position(),
            "state": None if self._state is None else self._state.tolist(),
        }
        (directory / "position.json").write_text(json.dumps(position))

    def restore(self, directory: Path) -> None:
        replay = np.load(directory / "replay.npy")
        self._replay[: len(replay)] = replay
        self._visits = np.load(directory / "visits.npy")
        self._projection = np.load(directory / "projection.npy")
        position = json.loads((directory / "position.json").read_text())
        self.env_steps = position["env_steps"]
        self._rng.bit_generator.state = position["rng"]
        self._env.go_to(position["environment"])
        state = position["state"]
        self._state = None if state is None else np.array(state, dtype=np.float32)

    def close(self) -> None:
        self._env.close()


def _with_lane(tree: Any) -> Any:
    return jax.tree.map(lambda array: array[None], tree)


# At module level, so that agents of one shape share the compiled program.
_begin: Callable[..., Learner] = jax.jit(begin_self_learning)
_update_target: Callable[..., Learner] = jax.jit(partial(update_target, 1))


def _train(
    network: Network,
    config: DqnConfig,
    numbers: Numbers,
    parameters_P: jax.Array,
    target_P: jax.Array,
    optimizer: Any,
    batches: jax.Array,
) -> tuple[jax.Array, Any, jax.Array]:
    """Train on each batch. Only arrays that are needed go in and out: each one has a cost."""
    optimiser, _ = optimisers_of(config)

    def step(state: tuple[jax.Array, Any], rows_BR: jax.Array) -> tuple[Any, jax.Array]:
        learner = new_learner(network, state[0], optimiser=optimiser)
        learner = learner._replace(target=target_P, optimizer=state[1])
        after = train(network, learner, numbers, rows_BR, double=config.double, optimiser=optimiser)
        return (after.parameters, after.optimizer), after.loss

    (parameters_P, optimizer), losses = jax.lax.scan(step, (parameters_P, optimizer), batches)
    return parameters_P, optimizer, losses[-1]
