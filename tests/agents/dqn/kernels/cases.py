"""Small populations for which a kernel has to equal the plain program."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.draws import chunk_draws
from fedhql.agents.dqn.experience import Experience
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.network import Network, padded
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.population import Dqn, Population
from fedhql.environments.lanes import TwinLanes
from tests.agents.dqn.corridor import CORRIDOR

PHASE, DISCOUNT = 40, 0.9
NEEDS_GPU = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
INTERPRET = pytest.mark.parametrize(
    "interpret", [True, pytest.param(False, marks=NEEDS_GPU)], ids=["interpreter", "gpu"]
)
# Close to the goal and with few steps, episodes of both ends are in every phase.
CLOSE = replace(CORRIDOR, step_limit=4, start=lambda draws: (0.5 + draws[0] / 2,), in_kernels=True)
LANES = TwinLanes(CLOSE)
RELU = DqnConfig(
    hidden=(20, 5),
    batch_size=16,
    learning_rate=0.01,
    learning_starts=16,
    target_update_interval=10_000,
    exploration_final_eps=0.3,
)
TANH = replace(RELU, hidden=(4,), activation="tanh", learning_rate=0.02, max_grad_norm=0.1)
DEEP = replace(RELU, hidden=(8, 3, 2), exploration_fraction=0.5, tau=0.5)


class Case:
    """Some agents of one population after a first phase of the plain program."""

    def __init__(self, configs: tuple[DqnConfig, ...], lanes: TwinLanes = LANES) -> None:
        networks = [
            Network(lanes.observation_size, c.hidden, lanes.action_count, c.activation)
            for c in configs
        ]
        config = configs[0]
        self.dqn = Dqn.of(config, padded(networks), lanes, PHASE, min(config.buffer_size, 1000))
        self.numbers: Numbers = numbers_of(
            configs, discount=DISCOUNT, budget_env_steps=100, phase_env_steps=PHASE
        )
        seeds = np.arange(len(configs), dtype=np.uint32)
        learner, experience = self.dqn.initialise(seeds, networks)
        self._self_learn = jax.jit(self.dqn.self_learn)
        self.new: Population = learner, experience
        first = self.plain(learner, experience, self.draws(experience, 0), PHASE)
        self.learner: Learner = first[0]
        self.experience: Experience = first[1]

    def plain(
        self, learner: Learner, experience: Experience, draws: jax.Array, until: int
    ) -> Population:
        """Return learner and experience after a phase of the plain program."""
        return self._self_learn(learner, experience, self.numbers, draws, jnp.int32(until))

    def draws(self, experience: Experience, begin: int) -> jax.Array:
        first = begin // self.dqn.train_freq
        return chunk_draws(experience.keys, first, self.dqn.chunks, self.dqn.draws_a_chunk)
