"""The interaction budget: an agent pays for its own steps and its share of the server's."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Budget:
    """What has been spent of the interactions each agent may use, server steps included.

    Objective (1) of the paper compares arms at equal |D_s| + Σ|D_n|, so each of the N agents is
    charged its own steps plus 1/N of the server's. Counted in whole steps over all agents
    (`N · own + server`), so that nothing is lost to rounding.
    """

    env_steps_per_agent: int
    agents: int
    own_env_steps: int = 0
    server_env_steps: int = 0

    @property
    def consumed_per_agent(self) -> float:
        return self.own_env_steps + self.server_env_steps / self.agents

    @property
    def remaining_env_steps(self) -> int:
        """What is left, over all agents and the server together."""
        spent = self.own_env_steps * self.agents + self.server_env_steps
        return self.env_steps_per_agent * self.agents - spent

    def affordable_self_learning(self, wanted_env_steps: int) -> int:
        """How long each agent may self-learn now: as wanted, or what is left."""
        return min(wanted_env_steps, self.remaining_env_steps // self.agents)

    def after_self_learning(self, env_steps: int) -> "Budget":
        return replace(self, own_env_steps=self.own_env_steps + env_steps)

    def after_server_steps(self, env_steps: int) -> "Budget":
        return replace(self, server_env_steps=self.server_env_steps + env_steps)
