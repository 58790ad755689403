"""An agent that takes its time until a file exists, so that a test can act meanwhile."""

import time
from pathlib import Path

from fedhql.agents.settings import TabularSettings
from fedhql.agents.tabular import TabularAgent
from fedhql.environments.make import make_environment

PAUSE_SECONDS = 0.2


class Unhurried(TabularAgent):
    def __init__(self, seed: int, until: str, epsilon: float = 0.1) -> None:
        settings = TabularSettings(epsilon=epsilon)
        environment = make_environment("FrozenLake-v1", {})
        super().__init__(settings, environment, discount=0.95, seed=seed)
        self._until = Path(until)

    def self_learn(self, env_steps: int) -> None:
        if not self._until.exists():
            time.sleep(PAUSE_SECONDS)
        super().self_learn(env_steps)


class Broken(Unhurried):
    def self_learn(self, env_steps: int) -> None:
        raise RuntimeError("broken on purpose")
