"""stable-baselines3's PPO as a black-box agent."""

from pathlib import Path
from typing import Any

from gymnasium import Space
from stable_baselines3 import PPO

from fedhql.acting import PolicyFunction
from fedhql.agents.sb3.rollout_agent import RolloutAgent, RolloutAlgorithm, load_rollout_policy
from fedhql.agents.sb3.settings import Sb3PpoSettings
from fedhql.agents.task import AgentTask

ALGORITHM = RolloutAlgorithm(PPO, own=("batch_size", "n_epochs", "clip_range", "target_kl"))


def build(settings: Sb3PpoSettings, task: AgentTask) -> RolloutAgent:
    return RolloutAgent(ALGORITHM, settings, task)


def load_policy(directory: Path, _: Space[Any]) -> PolicyFunction:
    return load_rollout_policy(ALGORITHM, directory)
