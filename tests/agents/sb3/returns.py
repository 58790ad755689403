"""How well an agent plays CartPole."""

import numpy as np

from fedhql.contract import BlackBoxAgent
from fedhql.engines.evaluation import evaluate
from fedhql.environments.batch import EnvironmentBatch
from fedhql.federation import InProcessCohort


def mean_return(agent: BlackBoxAgent, episodes: int = 10) -> float:
    """Return the mean of greedy episodes with fixed seeds."""
    seeds_PE = np.arange(episodes, dtype=np.uint32)[None]
    batch = EnvironmentBatch("CartPole-v1", episodes)
    act_each = InProcessCohort([agent], 2).act_each
    return float(evaluate(act_each, batch, seeds_PE, discount=1).returns.mean())
