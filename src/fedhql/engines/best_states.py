"""Evaluate the best state of each agent once more, in fresh episodes.

The best state has the highest of many noisy means, so that mean is too optimistic.
"""

import json

import numpy as np

from fedhql.acting import greedy_in
from fedhql.engines.build import build_batch
from fedhql.engines.build_agent import build_one_agent
from fedhql.engines.evaluation import evaluate
from fedhql.engines.kept_agents import kept_policy
from fedhql.engines.owned_cohort import Build
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import Cell, RunDirectory


def evaluate_best(
    settings: ExperimentSettings,
    cell: Cell,
    directory: RunDirectory,
    build: Build = build_one_agent,
) -> None:
    """Write best_returns.json of a cell, for the agents whose best state can be played."""
    names, episodes = settings.agent_names, settings.evaluation.best_episodes
    if episodes == 0:
        return
    homes = {n: directory.agent(cell, name) / "best" for n, name in enumerate(names)}
    policies = {
        n: policy
        for n, home in homes.items()
        if home.exists()
        and (policy := kept_policy(settings, cell.seed, n, home, build)) is not None
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
