"""sb3-contrib's QR-DQN, which learns quantiles of the return, as a black-box agent."""

from pathlib import Path
from typing import Any

from gymnasium import Space
from sb3_contrib import QRDQN

from fedhql.acting import PolicyFunction
from fedhql.agents.sb3.replay_agent import ReplayAgent, ReplayAlgorithm, load_replay_policy
from fedhql.agents.sb3.settings import Sb3QrdqnSettings
from fedhql.agents.task import AgentTask

ALGORITHM = ReplayAlgorithm(
    QRDQN,
    online="quantile_net",
    estimates=lambda quantiles_BTA: quantiles_BTA,
    policy_kwargs=lambda settings: {"n_quantiles": settings.n_quantiles},
)


def build(settings: Sb3QrdqnSettings, task: AgentTask) -> ReplayAgent:
    return ReplayAgent(ALGORITHM, settings, task)


def load_policy(directory: Path, _: Space[Any]) -> PolicyFunction:
    return load_replay_policy(ALGORITHM, directory)
