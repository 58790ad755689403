"""A module that only the processes import which build its agent."""

from tests.api.agents import PlainAgent


class CountedAgent(PlainAgent):
    """An agent as the others."""
