"""The best state of each agent, evaluated once more in fresh episodes.

It was chosen for the highest of many noisy means, so that mean says more than the agent can.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedhql.agents.catalog import load_policy
from fedhql.contract import Checkpointable, States, Values
from fedhql.environments.make import make_environment
from fedhql.experiments.build import build_batch, build_one_agent
from fedhql.experiments.evaluation import evaluate
from fedhql.experiments.seeds import Stream, seeds_for
from fedhql.experiments.settings import ExperimentSettings
from fedhql.results.files import write_atomically
from fedhql.results.run_directory import Cell, RunDirectory


def evaluate_best(settings: ExperimentSettings, cell: Cell, directory: RunDirectory) -> None:
    """Write best_returns.json of a cell, for the agents whose best state was kept."""
    names, episodes = settings.agent_names, settings.evaluation.best_episodes
    homes = {n: directory.agent(cell, name) / "best" for n, name in enumerate(names)}
    kept = [n for n, home in homes.items() if home.exists()]
    if not kept or episodes == 0:
        return
    policies = [_policy(settings, cell, n, homes[n]) for n in kept]
    environments = build_batch(settings, len(kept) * episodes)
    seeds_NE = np.stack([seeds_for(cell.seed, Stream.BEST, n, count=episodes) for n in kept])
    returns_NE, _ = evaluate(
        lambda states_N: [
            policy(states) for policy, states in zip(policies, states_N, strict=True)
        ],
        environments,
        seeds_NE,
        settings.evaluation.episode_step_limit,
    )
    environments.close()
    means = {names[n]: float(of_E.mean()) for n, of_E in zip(kept, returns_NE, strict=True)}
    write_atomically(directory.best_returns(cell), json.dumps(means, indent=2) + "\n")


def _policy(
    settings: ExperimentSettings, cell: Cell, n: int, home: Path
) -> Callable[[States], Values]:
    env = make_environment(settings.environment.id, settings.environment.options)
    policy = load_policy(settings.agents[n].kind, home, env.observation_space)
    env.close()
    if policy is not None:
        return policy
    agent = build_one_agent(settings, cell.seed, n)
    assert isinstance(agent, Checkpointable)  # else nothing was kept
    agent.restore(home)
    return agent.q_values
