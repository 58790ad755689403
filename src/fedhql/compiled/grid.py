"""A grid of federations: its state, and the compiled programs that advance it."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.checkpoint import load_arrays, load_experience, save_arrays, save_experience
from fedhql.agents.dqn.config import SILENT_UNITS, DqnConfig
from fedhql.agents.dqn.learner import Learner
from fedhql.agents.dqn.network import Network, extract
from fedhql.agents.dqn.phases import advance, advance_side_by_side, is_kernel_phase
from fedhql.agents.dqn.population import Dqn
from fedhql.compiled.compiled_cohort import (
    Learners,
    Members,
    cohort_numbers,
    form_cohort,
    should_pad,
)
from fedhql.compiled.evaluation import (
    Figures,
    as_figures,
    of_all_agents,
    play_agents,
    play_consensus,
    play_together,
)
from fedhql.compiled.programs import compile_ahead, federate_first, silent_units
from fedhql.compiled.replay import empty_memories
from fedhql.compiled.round_arrays import ArmNumbers, Outcome, draws_of_round
from fedhql.compiled.server import Server
from fedhql.environments.lanes import Episodes, Lanes, begin_episodes, go_on

Array = jax.Array
Seeds = NDArray[np.uint32]


class Grid:
    """L federations of the same N agents and environment; the first F of them federate."""

    def __init__(
        self,
        configs_N: Sequence[DqnConfig],
        make_lanes: Callable[[], Lanes],
        agent_seeds_LN: Seeds,
        arms: ArmNumbers,
        *,
        rules: tuple[str, ...],
        discount: float,
        phase_env_steps: int,
        budget_env_steps: int,
        pad: bool | None = None,
        all_actions: bool = False,
        backwards: bool = False,
        on_self_learned: Callable[[int, int], None] = lambda agents, env_steps: None,
    ) -> None:
        self.is_padded = should_pad(configs_N, make_lanes, phase_env_steps) if pad is None else pad
        self.cohort = form_cohort(
            configs_N,
            make_lanes,
            pad=self.is_padded,
            phase_env_steps=phase_env_steps,
            budget_env_steps=budget_env_steps,
        )
        self._shape = L, _ = agent_seeds_LN.shape
        self._numbers = cohort_numbers(
            self.cohort, configs_N, L, discount=discount, budget_env_steps=budget_env_steps
        )
        self._arms = arms
        # On a CPU, programs are compiled in this order. Two processes with the same populations
        # share JAX's cache. If one of them begins with the last population, each compiles half of
        # the programs and finds the other half in the cache.
        self._order = range(len(self.cohort.members))[:: -1 if backwards else 1]
        lanes = make_lanes()
        self._server = Server(
            self.cohort,
            lanes,
            rules,
            horizon_steps=int(max(arms.horizon_steps, default=0)),
            discount=discount,
            carry_over=bool(arms.carry_over.any()),
            all_actions=all_actions,
            pessimistic=bool(arms.pessimism.any()),
            exploring=bool(arms.random_actions.any()),
            attacked=any(attackers > 0 for attackers in arms.attackers.tolist()),
        )
        self._memories = None
        if any(replays_F := np.asarray(arms.replay_batch)):
            # So that a step writes no slot twice
            slots = int(max(*arms.replay_capacity[replays_F > 0], *arms.query_batch))
            self._memories = empty_memories(len(replays_F), slots, lanes.observation_size)
        N = len(configs_N)
        self._earnings_FN = jnp.zeros((len(replays_F), N)) if arms.auditions.any() else None
        self._consensus_lanes = make_lanes()  # the server's may hold episodes that continue
        self._silent_at_end: dict[int, NDArray[np.float64]] = {}  # of lanes that ended in a phase
        self._open: tuple[Episodes, Array] | None = None  # server episodes that continue
        # Agents and consensus in one loop, if the server's lanes may hold their episodes too
        self.plays_together = jax.default_backend() == "gpu" and self._server.lanes.keeps_episodes
        self._on_self_learned = on_self_learned  # after each population, for progress displays
        populations = [
            each.dqn.initialise(each.rows(agent_seeds_LN), each.networks)
            for each in self.cohort.members
        ]
        self.learners: Learners = tuple(learner for learner, _ in populations)
        self._experiences = [experience for _, experience in populations]
        self.env_steps = 0  # of every lane that has not ended

    def self_learn(self, until_L: NDArray[np.int64]) -> None:
        """Train every lane until each of its agents has taken `until_L` env steps in total.

        All lanes step together. A lane that stops earlier is at the end of its budget: its learners
        are set aside and put back when the other lanes are done.
        """
        aside: dict[int, Learners] = {}
        self._silent_at_end = {}
        phase_began = self.env_steps
        for until in sorted({int(until) for until in until_L if until > self.env_steps}):
            dqns = tuple(each.dqn for each in self.cohort.members)
            if all(is_kernel_phase(dqn, self.env_steps, until) for dqn in dqns):
                self._advance_side_by_side(dqns, until)
            else:
                self._advance_in_turn(until, new_phase=self.env_steps == phase_began)
            self.env_steps = until
            if until < max(until_L):
                ended = [int(lane) for lane in np.flatnonzero(until_L == until)]
                aside |= {lane: self._learners_of(lane) for lane in ended}
                # The other lanes go on, so these agents' last states will be overwritten.
                silent_LN = self._silent_units()
                self._silent_at_end |= {lane: silent_LN[lane] for lane in ended}
        for lane, learners in aside.items():
            self.learners = self._with_lane(lane, learners)

    def _advance_in_turn(self, until: int, *, new_phase: bool) -> None:
        for p in self._order:
            each = self.cohort.members[p]
            learner, self._experiences[p] = advance(
                each.dqn,
                self.learners[p],
                self._experiences[p],
                self._numbers[p],
                self.env_steps,
                until,
                new_phase=new_phase,
            )
            self._put(p, learner)
            learner.parameters.block_until_ready()
            self._on_self_learned(len(each.agents), until - self.env_steps)

    def _advance_side_by_side(self, dqns: tuple[Dqn, ...], until: int) -> None:
        given = self.learners, tuple(self._experiences), self._numbers
        populations = advance_side_by_side(dqns, *given, self.env_steps, until)
        self.learners = tuple(learner for learner, _ in populations)
        self._experiences = [experience for _, experience in populations]
        self.learners[0].parameters.block_until_ready()
        agents = sum(len(each.agents) for each in self.cohort.members)
        self._on_self_learned(agents, until - self.env_steps)

    def evaluate(
        self, seeds_LNE: Seeds, step_limit: int, seeds_FE: Seeds | None = None
    ) -> tuple[Figures, Figures]:
        """Play greedy episodes with every agent; with `seeds_FE`, with the consensus too.

        The consensus acts in the centre of all answers. Return returns, discounted returns, lengths
        and start values of the agents, (L, N, E) each, and the same of the consensus, (F, E) each.
        """
        if self.plays_together and seeds_FE is not None:
            return self._evaluate_together(seeds_LNE, seeds_FE, step_limit)
        played = []
        for p in self._order:
            each = self.cohort.members[p]
            episodes = begin_episodes(each.dqn.lanes, jnp.asarray(each.rows(seeds_LNE).ravel()))
            own = play_agents(each.dqn, self.learners[p], self._numbers[p], episodes, step_limit)
            played.append((each, as_figures(own)))
        of_agents = of_all_agents(played, seeds_LNE.shape)
        if seeds_FE is None:
            return of_agents, ()
        lanes = self._consensus_lanes
        episodes = begin_episodes(lanes, jnp.asarray(seeds_FE.ravel()))
        of_consensus = play_consensus(
            self._server, lanes, self.learners, self._numbers, self._arms, episodes, step_limit
        )
        return of_agents, as_figures(of_consensus)

    def _evaluate_together(
        self, seeds_LNE: Seeds, seeds_FE: Seeds, step_limit: int
    ) -> tuple[Figures, Figures]:
        members = self.cohort.members
        seeds = [each.rows(seeds_LNE).ravel() for each in members] + [seeds_FE.ravel()]
        episodes = begin_episodes(self._server.lanes, jnp.asarray(np.concatenate(seeds)))
        played = play_together(
            self._server, self.learners, self._numbers, self._arms, episodes, step_limit
        )
        ends = np.cumsum([len(of.discount) for of in self._numbers])
        parts = [np.split(figure, ends) for figure in as_figures(played)]
        *of_populations, of_consensus = zip(*parts, strict=True)
        of_agents = of_all_agents(zip(members, of_populations, strict=True), seeds_LNE.shape)
        return of_agents, of_consensus

    def federate(
        self,
        seeds_FB: Seeds,
        affordable_F: NDArray[np.int64],
        own_env_steps_F: NDArray[np.int64] | int,
    ) -> Outcome:
        """Run one round of at most `affordable_F` server env steps in each federated lane.

        `own_env_steps_F` are the env steps that each agent has taken itself; random actions become
        fewer with them.
        """
        lanes, seeds_M = self._server.lanes, jnp.asarray(seeds_FB.ravel())
        if self._open is None:
            episodes = begin_episodes(lanes, seeds_M)
        else:
            episodes = go_on(lanes, *self._open, seeds_M)
        self.learners, outcome, *after, self._memories, self._earnings_FN = federate_first(
            self._server,
            self.learners,
            self._numbers,
            self._arms,
            episodes,
            self._memories,
            self._earnings_FN,
            draws_of_round(self._arms, seeds_FB, own_env_steps_F),
            jnp.asarray(np.minimum(affordable_F, np.iinfo(np.int32).max), dtype=jnp.int32),
        )
        if self._server.carry_over:
            episodes, open_M = after
            self._open = episodes, open_M
        return Outcome(*outcome)

    def compile_ahead(self, episodes: int, query_batch: int, step_limit: int) -> None:
        """Compile a GPU's programs now, side by side, not each at its first call."""
        compile_ahead(
            self._server,
            self.learners,
            tuple(self._experiences),
            self._numbers,
            self._arms,
            self._memories,
            self._earnings_FN,
            episodes=episodes,
            query_batch=query_batch,
            step_limit=step_limit,
        )

    def policy(self, lane: int, agent: int) -> tuple[Network, NDArray[np.float32]]:
        """Return an agent's own network and its parameters."""
        p, each, slot = self._find(agent)
        row = np.asarray(self.learners[p].parameters[lane * len(each.agents) + slot])
        network = each.networks[slot]
        return network, extract(row, network, each.dqn.network)

    def diagnostics(self) -> dict[str, NDArray[np.float64]]:
        """Return figures of every agent, (L, N) each, under the tags of `DqnAgent.diagnostics`."""
        figures = {tag: np.zeros(self._shape) for tag in ("train/n_updates", "train/loss")}
        figures[SILENT_UNITS] = self._silent_units()
        for lane, silent_N in self._silent_at_end.items():
            figures[SILENT_UNITS][lane] = silent_N
        for each, learner in zip(self.cohort.members, self.learners, strict=True):
            for tag, of_rows in zip(figures, (learner.updates, learner.loss), strict=False):
                figures[tag][:, each.agents] = np.asarray(of_rows).reshape(self._shape[0], -1)
        return figures

    def _silent_units(self) -> NDArray[np.float64]:
        """Return the share of silent units of every agent: (L, N)."""
        silent_LN = np.zeros(self._shape)
        for p, each in enumerate(self.cohort.members):
            given = self.learners[p], self._numbers[p], self._experiences[p]
            found = np.asarray(silent_units(each.dqn, *given))
            silent_LN[:, each.agents] = found.reshape(len(silent_LN), -1)
        return silent_LN

    def save(self, directory: Path) -> None:
        for p, experience in enumerate(self._experiences):
            home = directory / f"population{p}"
            home.mkdir()
            save_arrays(home / "learner", self.learners[p])
            save_experience(home, experience)
        if self._open is not None:
            save_arrays(directory / "server", _server_state(*self._open, self._server.lanes))
        if self._memories is not None:
            save_arrays(directory / "memory", self._memories)
        if self._earnings_FN is not None:
            save_arrays(directory / "earnings", self._earnings_FN)

    def restore(self, directory: Path) -> None:
        for p in range(len(self._experiences)):
            home = directory / f"population{p}"
            self._put(p, load_arrays(home / "learner", self.learners[p]))
            self._experiences[p] = load_experience(home, self._experiences[p])
        self.env_steps = int(self._experiences[0].env_steps)
        if self._memories is not None:
            self._memories = load_arrays(directory / "memory", self._memories)
        if self._earnings_FN is not None:
            self._earnings_FN = load_arrays(directory / "earnings", self._earnings_FN)
        if (directory / "server.open.npy").exists():
            lanes = self._server.lanes
            some = begin_episodes(lanes, jnp.zeros(1, dtype=jnp.uint32)), jnp.zeros(1, dtype=bool)
            state = load_arrays(directory / "server", _server_state(*some, lanes), any_shape=True)
            self._open = state["episodes"], state["open"]
            lanes.replay(state["history"])

    def _put(self, p: int, learner: Learner) -> None:
        self.learners = (*self.learners[:p], learner, *self.learners[p + 1 :])

    def _find(self, agent: int) -> tuple[int, Members, int]:
        """Return the number of an agent's population, its members, and its index in each lane."""
        return next(
            (p, each, each.agents.index(agent))
            for p, each in enumerate(self.cohort.members)
            if agent in each.agents
        )

    def _learners_of(self, lane: int) -> Learners:
        return tuple(
            jax.tree.map(itemgetter(_rows(each, lane)), learner)
            for each, learner in zip(self.cohort.members, self.learners, strict=True)
        )

    def _with_lane(self, lane: int, learners: Learners) -> Learners:
        after = []
        for each, learner, own in zip(self.cohort.members, self.learners, learners, strict=True):
            put = partial(_set_rows, _rows(each, lane))
            after.append(jax.tree.map(put, learner, own))
        return tuple(after)


def _server_state(episodes: Episodes, open_M: Array, lanes: Lanes) -> dict[str, Any]:
    return {"episodes": episodes, "open": open_M, "history": lanes.history()}


def _rows(each: Members, lane: int) -> slice:
    return slice(lane * len(each.agents), (lane + 1) * len(each.agents))


def _set_rows(rows: slice, array: Array, own: Array) -> Array:
    return array.at[rows].set(own)
