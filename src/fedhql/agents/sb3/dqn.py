"""stable-baselines3's DQN, the paper's backbone, as a black-box agent."""

from pathlib import Path
from typing import Any

from gymnasium import Space
from stable_baselines3 import DQN

from fedhql.acting import PolicyFunction
from fedhql.agents.sb3.replay_agent import ReplayAgent, ReplayAlgorithm, load_replay_policy
from fedhql.agents.sb3.settings import Sb3DqnSettings
from fedhql.agents.task import AgentTask

ALGORITHM = ReplayAlgorithm(
    DQN,
    online="q_net",
    estimates=lambda values_BA: values_BA.unsqueeze(1),
)


def build(settings: Sb3DqnSettings, task: AgentTask) -> ReplayAgent:
    return ReplayAgent(ALGORITHM, settings, task)


def load_policy(directory: Path, _: Space[Any]) -> PolicyFunction:
    return load_replay_policy(ALGORITHM, directory)
