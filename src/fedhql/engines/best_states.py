"""Evaluate the best state of each agent once more, in fresh episodes.

The best state has the highest of many noisy means, so that mean is too optimistic.
"""

import json
from collections.abc import Sequence

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

MOST_EPISODES = 4_096  # at once


def evaluate_best(
    settings: ExperimentSettings,
    cells: Sequence[Cell],
    directory: RunDirectory,
    build: Build = build_one_agent,
) -> None:
    """Write best_returns.json of cells, for the agents whose best state can be played.

    Cells play side by side, because a step costs a GPU hardly more for many environments.
    """
    episodes = settings.evaluation.best_episodes
    if episodes == 0:
        return
    together = max(1, MOST_EPISODES // (episodes * len(settings.agents)))
    for first in range(0, len(cells), together):
        _evaluate_together(settings, cells[first : first + together], directory, build)


def _evaluate_together(
    settings: ExperimentSettings, cells: Sequence[Cell], directory: RunDirectory, build: Build
) -> None:
    names, episodes = settings.agent_names, settings.evaluation.best_episodes
    policies = {
        (cell, n): policy
        for cell in cells
        for n, name in enumerate(names)
        if (home := directory.agent(cell, name) / "best").exists()
        and (policy := kept_policy(settings, cell.seed, n, home, build)) is not None
    }
    if not policies:
        return
    environments = build_batch(settings, len(policies) * episodes)
    seeds_PE = np.stack(
        [seeds_for(cell.seed, Stream.BEST, n, count=episodes) for cell, n in policies]
    )
    played = evaluate(
        lambda states_P: [
            # Policies need not accept an empty batch.
            policy(states) if len(states) else greedy_in(np.empty((0, 1), dtype=np.float32))
            for policy, states in zip(policies.values(), states_P, strict=True)
        ],
        environments,
        seeds_PE,
        discount=settings.environment.discount,
        episode_step_limit=settings.evaluation.episode_step_limit,
    )
    environments.close()
    means: dict[Cell, dict[str, float]] = {}
    for (cell, n), of_E in zip(policies, played.returns, strict=True):
        means.setdefault(cell, {})[names[n]] = float(of_E.mean())
    for cell, of_cell in means.items():
        write_atomically(directory.best_returns(cell), json.dumps(of_cell, indent=2) + "\n")
