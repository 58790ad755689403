"""The interaction budget: an agent pays for its own steps and its share of the server's."""

from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class Account:
    """What one agent has consumed. Shares are exact fractions, so that no step is lost."""

    own_env_steps: int = 0
    server_share: Fraction = Fraction(0)  # of the server's env steps

    @property
    def consumed(self) -> float:
        return self.own_env_steps + float(self.server_share)

    def left(self, env_steps: int) -> Fraction:
        """Return what is left of a budget of `env_steps`."""
        return env_steps - self.own_env_steps - self.server_share

    def charged(self, server_env_steps: int, agents: int) -> "Account":
        """Charge the agent for its part of server steps that `agents` agents pay for together."""
        share = self.server_share + Fraction(server_env_steps, agents)
        return replace(self, server_share=share)


@dataclass(frozen=True)
class Budget:
    """What N agents have spent of their interactions; all N take the same number of steps.

    Objective (1) of the paper compares arms at equal |D_s| + Σ|D_n|, so each of the N agents is
    charged its own steps plus 1/N of the server's.
    """

    env_steps_per_agent: int
    agents: int
    own_env_steps: int = 0
    server_env_steps: int = 0

    @property
    def account(self) -> Account:
        """Return the account of any one of the agents."""
        return Account(self.own_env_steps).charged(self.server_env_steps, self.agents)

    @property
    def consumed_per_agent(self) -> float:
        return self.account.consumed

    @property
    def remaining_env_steps(self) -> int:
        """Return what is left over all agents and the server together."""
        return int(self.agents * self.account.left(self.env_steps_per_agent))

    def affordable_self_learning(self, wanted_env_steps: int) -> int:
        """Return how many steps each agent may self-learn: those wanted, or what is left."""
        return min(wanted_env_steps, self.remaining_env_steps // self.agents)

    def after_self_learning(self, env_steps: int) -> "Budget":
        return replace(self, own_env_steps=self.own_env_steps + env_steps)

    def after_server_steps(self, env_steps: int) -> "Budget":
        return replace(self, server_env_steps=self.server_env_steps + env_steps)
