"""Agents that ship with fedhql. Nothing in `federation` may import this room.

`catalog` builds any of them by name; each module needs only what its own agent is made of.
"""
