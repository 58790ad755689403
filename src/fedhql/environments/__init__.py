"""Gymnasium environments: one, a batch, and one whose position can be saved."""

from fedhql.environments.batch import EnvironmentBatch
from fedhql.environments.make import Environment, action_count, make_environment
from fedhql.environments.replayable import ReplayableEnvironment

__all__ = [
    "Environment",
    "EnvironmentBatch",
    "ReplayableEnvironment",
    "action_count",
    "make_environment",
]
