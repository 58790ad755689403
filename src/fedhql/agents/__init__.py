"""Agents that ship with fedhql. Nothing in `federation` may import this room."""

from fedhql.agents.catalog import KINDS, build_agent, settings_class
from fedhql.agents.randomness import PrivateStreams

__all__ = ["KINDS", "PrivateStreams", "build_agent", "settings_class"]
