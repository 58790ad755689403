"""Run a small federation in either engine and record every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.agent import DqnAgent
from fedhql.compiled.grid import Grid
from fedhql.compiled.round_arrays import draws_of_round
from fedhql.compiled.server import Server
from fedhql.engines.attacked_cohort import under_attack
from fedhql.engines.build import build_batch, build_cohort, build_server
from fedhql.engines.build_agent import build_agents
from fedhql.engines.build_grid import build_grid
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.federation import Answers, Budget, PlainCohort
from fedhql.federation.step import broadcast_rows
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell

Floats = NDArray[Any]
PLENTY = 10**6  # a budget that no test exhausts


@dataclass
class Round:
    """The record of one round."""

    learned: list[Floats]  # each agent's parameters after self-learning
    actions: list[Floats] = field(default_factory=list)  # the server's actions in each step
    targets: list[Floats] = field(default_factory=list)
    improved: list[Floats] = field(default_factory=list)  # parameters after the round
    figures: Sequence[float] = ()  # server steps, spread, TD error, loss


class SpyingCohort:
    """Forwards every call to a cohort and records the broadcasts."""

    def __init__(self, cohort: PlainCohort) -> None:
        self._cohort = cohort
        self.names = cohort.names
        self.broadcast: list[tuple[Floats, Floats, Floats]] = []

    def self_learn(self, env_steps: int) -> None:
        self._cohort.self_learn(env_steps)

    def query(self, states: Floats) -> Answers:
        return self._cohort.query(states)

    def improve(self, states: Floats, actions: Floats, targets: Floats) -> None:
        self.broadcast.append((states, actions, targets))
        self._cohort.improve(states, actions, targets)

    def close(self) -> None:
        self._cohort.close()


def server_seeds(settings: ExperimentSettings, cell: Cell, number: int) -> NDArray[np.uint32]:
    batch = settings_of_arm(settings, cell.arm).federation.query_batch
    return seeds_for(cell.seed, Stream.SERVER, number, count=batch)


def by_messages(settings: ExperimentSettings, cell: Cell, rounds: int) -> list[Round]:
    """Run the cell in the message engine."""
    of_arm = settings_of_arm(settings, cell.arm)
    agents: list[Any] = list(build_agents(of_arm, cell.seed))
    assert all(isinstance(agent, DqnAgent) for agent in agents)
    spy = SpyingCohort(build_cohort(settings, agents))
    cohort = under_attack(spy, of_arm.attack)
    server = build_server(of_arm, cohort, build_batch(of_arm, of_arm.federation.query_batch))
    history = []
    for number in range(rounds):
        cohort.self_learn(settings.federation.self_learning_env_steps)
        record = Round([agent._parameters() for agent in agents])
        if federates(cell.arm):
            spy.broadcast.clear()
            seeds = server_seeds(settings, cell, number).tolist()
            own = (number + 1) * settings.federation.self_learning_env_steps
            _, figures = server.federate(Budget(PLENTY, len(agents), own_env_steps=own), seeds)
            _, actions, targets = zip(*spy.broadcast, strict=True)
            record.actions, record.targets = list(actions), list(targets)
            spent = figures.server_env_steps
            record.figures = (spent, figures.spread, figures.td_error, figures.loss)
        record.improved = [agent._parameters() for agent in agents]
        history.append(record)
    return history


def by_compiled_programs(
    settings: ExperimentSettings, cells: Sequence[Cell], rounds: int
) -> list[list[Round]]:
    """Run the cells as lanes of one grid. Return the history of each."""
    grid = build_grid(settings, cells)
    F, agents = sum(federates(cell.arm) for cell in cells), range(len(settings.agents))
    history: list[list[Round]] = [[] for _ in cells]
    for number in range(rounds):
        until = (number + 1) * settings.federation.self_learning_env_steps
        grid.self_learn(np.full(len(cells), until))
        lanes = range(len(cells))
        records = [Round([grid.policy(lane, n)[1] for n in agents]) for lane in lanes]
        seeds_FB = np.stack([server_seeds(settings, cell, number) for cell in cells[:F]])
        _federate(grid, seeds_FB, records[:F])
        for lane, record in enumerate(records):
            record.improved = [grid.policy(lane, n)[1] for n in agents]
            history[lane].append(record)
    return history


def _federate(grid: Grid, seeds_FB: NDArray[np.uint32], records: list[Round]) -> None:
    """Do what `Grid.federate` does, but one server step at a time, and record each step."""
    server, F = grid._server, len(records)
    learners = server.cohort.first(grid.learners, F)
    numbers = server.cohort.first(grid._numbers, F)
    episodes = server.lanes.begin(jnp.asarray(seeds_FB.ravel()))
    running = np.ones(seeds_FB.shape, dtype=bool)
    weights = jnp.zeros((F, grid._shape[1])) if server.is_weighted else None
    sums, spent = np.zeros((F, 3)), np.zeros(F, dtype=int)
    draws = draws_of_round(grid._arms, seeds_FB, grid.env_steps)
    for number in range(server.horizon_steps):
        at_random = draws.actions[number], draws.random_probability
        given = episodes, jnp.asarray(running), weights, None, number, at_random  # no auditions
        step = _server_step(server, learners, numbers, grid._arms, *given)
        for lane, record in enumerate(records):
            if running[lane].any():
                sent = step.actions, step.targets
                actions, targets = (np.asarray(x)[lane, running[lane]] for x in sent)
                if server.all_actions:  # in the rows that the message engine sends
                    _, actions, targets = broadcast_rows(actions, targets)
                record.actions.append(actions)
                record.targets.append(targets)
        sums, spent = sums + np.asarray(step.sums), spent + running.sum(axis=1)
        running &= ~np.asarray(step.ended)
        learners, episodes, weights = step.learners, step.episodes, step.weights
    put = lambda all_, new: all_.at[: len(new)].set(new)  # noqa: E731
    grid.learners = jax.tree.map(put, grid.learners, learners)
    for lane, record in enumerate(records):
        record.figures = (spent[lane], *sums[lane] / spent[lane])


_server_step = jax.jit(Server.step, static_argnums=0)
