"""Agents that ship with fedhql. `federation` must not import this package.

`kinds` builds any of them by name. Each module imports only the packages that its own agent needs.
"""
