"""fedhql's own DQN as a black-box agent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space

from fedhql.acting import PolicyFunction, greedily
from fedhql.agents.dqn.checkpoint import load_arrays, save_arrays
from fedhql.agents.dqn.config import SILENT_AT_STATES, SILENT_UNITS, DqnChoices, DqnConfig
from fedhql.agents.dqn.draws import initial_parameters
from fedhql.agents.dqn.exploration import annealed_epsilon
from fedhql.agents.dqn.learner import Learner, improve, new_learner
from fedhql.agents.dqn.network import Network
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.observations import Encoder
from fedhql.agents.dqn.optimisers import optimisers_of
from fedhql.agents.dqn.population import Dqn
from fedhql.agents.dqn.self_learning import CompiledSelfLearning, HostSelfLearning, SelfLearning
from fedhql.agents.network_policy import load_network, write_network
from fedhql.agents.task import AgentTask
from fedhql.contract import Actions, States, Values
from fedhql.environments.lanes import TwinLanes
from fedhql.environments.make import Environment, action_count, first_observation
from fedhql.environments.replayable import ReplayableEnvironment
from fedhql.environments.twins import Twin

CALL_ENV_STEPS = 5_000  # of one compiled call; results do not depend on it


class DqnAgent:
    """A `BlackBoxAgent` that is also `Checkpointable`, `Exportable` and `Diagnosable`.

    With a twin of its environment, a whole self-learning phase is one compiled program.
    """

    def __init__(
        self,
        config: DqnConfig,
        env: Environment,
        twin: Twin | None,
        *,
        discount: float,
        budget_env_steps: int,
        phase_env_steps: int | None = None,
        seed: int,
    ) -> None:
        """Build an agent. It needs `phase_env_steps` only if it anneals ε in each phase."""
        self._config = config
        self._encoder = Encoder(env.observation_space)
        numbers = numbers_of(
            [config],
            discount=discount,
            budget_env_steps=budget_env_steps,
            phase_env_steps=phase_env_steps,
        )
        self._numbers = Numbers(*(number[0] for number in numbers))
        self.network = Network(
            self._encoder.size, config.hidden, action_count(env), config.activation
        )
        optimiser, self._improver = optimisers_of(config)
        self._learner = new_learner(
            self.network,
            jnp.asarray(initial_parameters(self.network, seed)),
            optimiser=optimiser,
            improver=self._improver,
            revives=config.improvement_revives_units,
        )
        self._experience: SelfLearning
        capacity = config.replay_capacity(budget_env_steps)
        if twin is None:
            replayable = ReplayableEnvironment(env, seed)
            self._experience = HostSelfLearning(
                self.network, config, self._numbers, replayable, self._encoder, capacity, seed
            )
        else:
            env.close()
            lanes = TwinLanes(twin)
            dqn = Dqn.of(config, self.network, lanes, CALL_ENV_STEPS, capacity)
            _, experience = dqn.initialise(np.array([seed], dtype=np.uint32), (self.network,))
            self._experience = CompiledSelfLearning(dqn, self._numbers, experience)

    def self_learn(self, env_steps: int) -> None:
        self._learner = self._experience.self_learn(self._learner, env_steps)

    def q_values(self, states: States) -> Values:
        """Compute in NumPy: a compiled program would be needed for every batch size."""
        return self.network.q_values(self._parameters(), self._encoder.batch(states))

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        rows = self._encoder.batch(states), np.asarray(actions, np.int32), np.asarray(targets, "f4")
        states_BD, actions_B, targets = _once_a_state(*rows, self.network.outputs)
        B = len(states_BD)
        padded = 1 << (B - 1).bit_length()  # a power of two, so that few sizes are compiled

        def row(values: Any) -> Any:
            """Append rows of zeros up to the padded size; their weight is 0."""
            return np.pad(values, [(0, padded - B)] + [(0, 0)] * (np.ndim(values) - 1))

        self._learner = _improve(
            self.network,
            self._learner,
            self._numbers,
            row(states_BD),
            None if actions_B is None else row(actions_B),
            row(targets),
            row(np.ones(B, dtype=np.float32)),
            steps=self._config.improvement_steps,
            optimiser=self._improver,
        )

    def save(self, directory: Path) -> None:
        save_arrays(directory / "learner", self._learner)
        self._experience.save(directory)

    def restore(self, directory: Path) -> None:
        self._learner = load_arrays(directory / "learner", self._learner)
        self._experience.restore(directory)

    def export(self, directory: Path) -> None:
        export_policy(directory, self.network, self._parameters())

    def diagnostics(self) -> dict[str, float]:
        """Return the figures that stable-baselines3 logs for a DQN, under its tags, and ours."""
        states_SD = self._experience.last_states(SILENT_AT_STATES)
        figures = {
            SILENT_UNITS: float(self.network.silent_units(self._parameters(), states_SD)),
            "time/total_timesteps": float(self._experience.env_steps),
            "train/learning_rate": self._config.learning_rate,
            "train/n_updates": float(self._learner.updates),
            "train/loss": float(self._learner.loss),
        }
        if self._config.exploration == "epsilon-greedy":
            figures["rollout/exploration_rate"] = float(
                annealed_epsilon(self._numbers, jnp.int32(self._experience.env_steps))
            )
        return figures

    def close(self) -> None:
        self._experience.close()

    def _parameters(self) -> Any:
        return np.array(self._learner.parameters)


def build(settings: DqnChoices, task: AgentTask) -> DqnAgent:
    return DqnAgent(
        settings.config(),
        task.make_environment(),
        task.find_twin(),
        discount=task.discount,
        budget_env_steps=task.budget_env_steps,
        phase_env_steps=task.phase_env_steps,
        seed=task.seed,
    )


def export_policy(directory: Path, network: Network, parameters_P: Any) -> None:
    """Write the network of the greedy policy."""
    write_network(directory, network.unpack(np.asarray(parameters_P)), network.activation)


def load_policy(directory: Path, space: Space[Any]) -> PolicyFunction:
    """Return the policy of an exported agent."""
    return greedily(load_network(directory, first_observation(space)))


_improve: Callable[..., Learner] = jax.jit(
    improve, static_argnums=0, static_argnames=("steps", "optimiser")
)


def _once_a_state(states_RD: Any, actions_R: Any, targets_R: Any, A: int) -> tuple[Any, Any, Any]:
    """Return each state once, with the targets of its A actions, if the rows hold just that.

    Then one pass of the network serves all actions of a state.
    """
    B = len(states_RD) // A
    if len(states_RD) == B * A and (actions_R.reshape(B, A) == np.arange(A)).all():
        states_BAD = states_RD.reshape(B, A, -1)
        if (states_BAD == states_BAD[:, :1]).all():
            return states_BAD[:, 0], None, targets_R.reshape(B, A)
    return states_RD, actions_R, targets_R
