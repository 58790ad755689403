"""The paper's four experiments: tasks with their tables of agents."""

from dataclasses import dataclass

import numpy as np

from fedhql.results.curves import Run
from fedhql.results.verdicts import Range


@dataclass(frozen=True)
class Experiment:
    """One of the paper's: a task with its table of agents."""

    name: str
    env_id: str
    budget: int
    scale: float  # of returns: CartPole 0 to 500, LunarLander -100 (a crash) to 200 (solved)
    # Hidden layers, activation, learning rate, ε of each agent.
    agents: tuple[tuple[tuple[int, ...], str, float, float], ...]

    @property
    def tolerance(self) -> float:
        return self.scale / 10

    def is_of(self, run: Run) -> bool:
        """Whether a run has this task and these agents, and an arm with the paper's rule."""
        if not run.only_dqn:  # options of other kinds may have these names and other types
            return False
        keys = ("activation", "learning_rate", "exploration_final_eps")
        agents = [
            (tuple(agent.get("hidden", ())), *(agent.get(key) for key in keys))
            for agent in run.settings["agents"]
        ]
        same = run.settings["environment"]["id"] == self.env_id and agents == list(self.agents)
        return same and any(run.exploration(arm) is not None for arm in run.federated_arms)

    def range(
        self, *, above: float = -np.inf, below: float = np.inf, unit: float | None = None
    ) -> Range:
        return Range(above, below, unit or self.scale)

    def close_to(self, value: float) -> Range:
        return self.range(above=value - self.tolerance, below=value + self.tolerance)


FIVE = (
    ((64, 64), "tanh", 0.005, 0.01),
    ((128, 128), "relu", 0.01, 0.1),
    ((32, 32), "tanh", 0.01, 0.05),
    ((16, 16), "relu", 0.02, 0.01),
    ((8, 8, 8), "relu", 0.001, 0.01),
)
TEN = (
    ((64, 64), "relu", 0.01, 0.01),
    ((128, 128), "relu", 0.1, 0.1),
    ((32, 32), "tanh", 0.01, 0.05),
    ((16, 16), "relu", 0.01, 0.01),
    ((8, 8, 8), "relu", 0.01, 0.01),
    ((64, 64), "tanh", 0.02, 0.01),
    ((128, 128), "relu", 0.02, 0.1),
    ((32, 32), "relu", 0.02, 0.05),
    ((16, 16), "tanh", 0.05, 0.01),
    ((8, 8, 8), "tanh", 0.05, 0.01),
)
CARTPOLE_5 = Experiment("CartPole N=5", "CartPole-v1", 2_000_000, 500, FIVE)
CARTPOLE_10 = Experiment("CartPole N=10", "CartPole-v1", 2_000_000, 500, TEN)
LUNARLANDER_5 = Experiment("LunarLander N=5", "LunarLander-v3", 4_000_000, 300, FIVE)
LUNARLANDER_10 = Experiment("LunarLander N=10", "LunarLander-v3", 4_000_000, 300, TEN)
PAPER = (CARTPOLE_5, CARTPOLE_10, LUNARLANDER_5, LUNARLANDER_10)


def share_of_papers_budget(run: Run) -> float | None:
    """Return the run's budget in units of the paper's; None if the paper has no such experiment."""
    return next((run.budget / each.budget for each in PAPER if each.is_of(run)), None)
