"""Agents for tests: slow ones, ones that save their node, and ones that fail."""

import time
from pathlib import Path

import ray

from fedhql.agents.kind_settings import TabularSettings
from fedhql.agents.tabular import TabularAgent
from fedhql.contract import Actions, States
from fedhql.environments.make import make_environment

PAUSE_SECONDS = 0.2


class Unhurried(TabularAgent):
    """Pauses in every self-learning phase until the file `until` exists."""

    def __init__(self, seed: int, until: str, epsilon: float = 0.1) -> None:
        settings = TabularSettings(epsilon=epsilon)
        environment = make_environment("FrozenLake-v1", {})
        super().__init__(settings, environment, discount=0.95, seed=seed)
        self._until = Path(until)

    def self_learn(self, env_steps: int) -> None:
        if not self._until.exists():
            time.sleep(PAUSE_SECONDS)
        super().self_learn(env_steps)


class Sited(Unhurried):
    """Saves the id of its node."""

    def save(self, directory: Path) -> None:
        (directory / "node").write_text(ray.get_runtime_context().get_node_id())


class SelfWilled(Unhurried):
    """Acts by a rule of its own."""

    def act(self, states: States) -> Actions:
        return states % 3


class Broken(Unhurried):
    def self_learn(self, env_steps: int) -> None:
        raise RuntimeError("broken on purpose")
