"""Evaluate the best state of each agent once more, in fresh episodes.

The best state has the highest of many noisy means, so that mean is too optimistic.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.agents.kinds import load_policy
from fedhql.contract import Checkpointable, Exportable, States
from fedhql.engines.build import build_batch, first_states
from fedhql.engines.build_agent import build_one_agent
from fedhql.engines.evaluation import evaluate
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.environments.compiled import find_twin
from fedhql.environments.make import make_environment
from fedhql.federation.cohort import greedy_answer_of
from fedhql.plugins import is_plugin
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory


def evaluate_best(settings: ExperimentSettings, cell: Cell, directory: RunDirectory) -> None:
    """Write best_returns.json of a cell, for the agents whose best state can be played."""
    names, episodes = settings.agent_names, settings.evaluation.best_episodes
    if episodes == 0:
        return
    homes = {n: directory.agent(cell, name) / "best" for n, name in enumerate(names)}
    policies = {
        n: policy
        for n, home in homes.items()
        if home.exists() and (policy := _policy(settings, cell, n, home)) is not None
    }
    if not policies:
        return
    environments = build_batch(settings, len(policies) * episodes)
    seeds_NE = np.stack([seeds_for(cell.seed, Stream.BEST, n, count=episodes) for n in policies])
    played = evaluate(
        lambda states_N: [
            # Policies need not accept an empty batch.
            policy(states) if len(states) else greedy_in(np.empty((0, 1), dtype=np.float32))
            for policy, states in zip(policies.values(), states_N, strict=True)
        ],
        environments,
        seeds_NE,
        discount=settings.environment.discount,
        episode_step_limit=settings.evaluation.episode_step_limit,
    )
    environments.close()
    means = {names[n]: float(of_E.mean()) for n, of_E in zip(policies, played.returns, strict=True)}
    write_atomically(directory.best_returns(cell), json.dumps(means, indent=2) + "\n")


def _observation_space(settings: ExperimentSettings) -> spaces.Space[Any]:
    """Return the space; a twin has one without Gymnasium's environment, which may be missing."""
    of = settings.environment
    if not is_plugin(of.implementation):
        twin = find_twin(of.id, of.options, of.implementation)
        if twin is not None:
            return spaces.Box(-np.inf, np.inf, (twin.observation_size,), np.float32)
    env = make_environment(of.id, of.options)
    env.close()
    return env.observation_space


def _policy(
    settings: ExperimentSettings, cell: Cell, n: int, home: Path
) -> Callable[[States], GreedyAnswer] | None:
    """Return the policy in `home`; None if only the agent's owner can read what it exported."""
    policy = load_policy(settings.agents[n].kind, home, _observation_space(settings))
    if policy is not None:
        return policy
    agent = build_one_agent(settings, cell.seed, n)
    if isinstance(agent, Exportable) or not isinstance(agent, Checkpointable):
        return None
    agent.restore(home)
    name, actions = settings.agent_names[n], first_states(settings)[1]
    return lambda states: greedy_answer_of(name, agent, states, actions)
