"""stable-baselines3's A2C as a black-box agent."""

from pathlib import Path
from typing import Any

from gymnasium import Space
from stable_baselines3 import A2C

from fedhql.acting import PolicyFunction
from fedhql.agents.sb3.rollout_agent import RolloutAgent, RolloutAlgorithm, load_rollout_policy
from fedhql.agents.sb3.settings import Sb3A2cSettings
from fedhql.agents.task import AgentTask

ALGORITHM = RolloutAlgorithm(A2C, own=())


def build(settings: Sb3A2cSettings, task: AgentTask) -> RolloutAgent:
    return RolloutAgent(ALGORITHM, settings, task)


def load_policy(directory: Path, _: Space[Any]) -> PolicyFunction:
    return load_rollout_policy(ALGORITHM, directory)
