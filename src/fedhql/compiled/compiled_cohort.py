"""The N agents of every lane, in populations; the agents of one population have one shape.

On a CPU each agent keeps its own shape: a population is that agent in all lanes. So it is on a GPU
if kernels of our own run all populations side by side. Otherwise agents of different shapes are
padded into common populations there, so that fewer kernels run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.network import Network, padded
from fedhql.agents.dqn.numbers import Numbers, numbers_of
from fedhql.agents.dqn.phases import phase_kernel
from fedhql.agents.dqn.population import Dqn, program_of
from fedhql.environments.lanes import Lanes

Array = jax.Array
Learners = tuple[Learner, ...]  # one for each population


@dataclass(frozen=True)
class Members:
    """One population and its agents. Its rows are the agents of lane 0, of lane 1, ..."""

    dqn: Dqn
    agents: tuple[int, ...]
    networks: tuple[Network, ...]  # of each agent, before padding

    def rows(self, values_LN: Any) -> Any:
        """Return the rows of this population out of values for every agent (L, N, ...)."""
        mine = values_LN[:, np.array(self.agents)]
        return mine.reshape(-1, *mine.shape[2:])

    def repeated(self, values_L: Array) -> Array:
        """Repeat a lane's values (L, ...) for every agent of this population in the lane."""
        return jnp.repeat(values_L, len(self.agents), axis=0)


@dataclass(frozen=True)
class CompiledCohort:
    """All populations: the compiled counterpart of a `Cohort`, for many lanes at once."""

    members: tuple[Members, ...]

    def q_values(
        self, learners: Learners, numbers: tuple[Numbers, ...], states_LBD: Array
    ) -> Array:
        """Return every agent's values at the states of its lane: (L, N, B, A)."""
        L = states_LBD.shape[0]
        q = [
            each.dqn.q_values(learner, number, each.repeated(states_LBD))
            for each, learner, number in zip(self.members, learners, numbers, strict=True)
        ]
        q_LNBA = jnp.concatenate([part.reshape(L, -1, *part.shape[1:]) for part in q], axis=1)
        return q_LNBA[:, self._in_agent_order()]

    def improve(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        states_LBD: Array,
        actions_LB: Array | None,
        targets: Array,
        weights_LB: Array,
    ) -> Learners:
        """Improve every agent; with no `actions_LB`, `targets` (L, B, A) are for all actions."""
        exchange = states_LBD, actions_LB, targets, weights_LB
        return tuple(
            each.dqn.improve(learner, number, *jax.tree.map(each.repeated, exchange))
            for each, learner, number in zip(self.members, learners, numbers, strict=True)
        )

    def first(self, tree: Any, lanes: int) -> Any:
        """Return the learners or numbers of the first lanes only."""
        parts = []
        for each, part in zip(self.members, tree, strict=True):
            rows = lanes * len(each.agents)
            parts.append(jax.tree.map(itemgetter(slice(rows)), part))
        return tuple(parts)

    def _in_agent_order(self) -> Any:
        return np.argsort([n for each in self.members for n in each.agents])


def form_cohort(
    configs_N: Sequence[DqnConfig],
    make_lanes: Callable[[], Lanes],
    *,
    pad: bool,
    phase_env_steps: int,
    budget_env_steps: int,
) -> CompiledCohort:
    """Group the agents into populations: one each, or padded together where `pad` allows it."""
    groups: dict[Any, list[int]] = {}
    for n, config in enumerate(configs_N):
        groups.setdefault(_common_shape(config) if pad else n, []).append(n)
    members = []
    for agents in groups.values():
        lanes = make_lanes()
        networks = tuple(
            Network(lanes.observation_size, c.hidden, lanes.action_count, c.activation)
            for c in (configs_N[n] for n in agents)
        )
        config = configs_N[agents[0]]
        capacity = config.replay_capacity(budget_env_steps)
        dqn = Dqn.of(config, padded(networks), lanes, phase_env_steps, capacity)
        members.append(Members(dqn, tuple(agents), networks))
    return CompiledCohort(tuple(members))


def should_pad(
    configs_N: Sequence[DqnConfig], make_lanes: Callable[[], Lanes], phase_env_steps: int
) -> bool:
    """Return whether padding makes programs on this device faster."""
    if jax.default_backend() == "cpu":
        return False
    own_shapes = form_cohort(
        configs_N,
        make_lanes,
        pad=False,
        phase_env_steps=phase_env_steps,
        budget_env_steps=phase_env_steps,
    )
    has_kernels = all(phase_kernel(each.dqn) is not None for each in own_shapes.members)
    return not (has_kernels and jax.default_backend() == "gpu")


def cohort_numbers(
    cohort: CompiledCohort,
    configs_N: Sequence[DqnConfig],
    lanes: int,
    *,
    discount: float,
    budget_env_steps: int,
) -> tuple[Numbers, ...]:
    return tuple(
        numbers_of(
            [configs_N[n] for n in each.agents] * lanes,
            discount=discount,
            budget_env_steps=budget_env_steps,
            phase_env_steps=each.dqn.phase_env_steps,
        )
        for each in cohort.members
    )


def _common_shape(config: DqnConfig) -> Any:
    """Return a key; agents with equal keys can be padded into one population."""
    return *program_of(config).values(), config.buffer_size
