"""Agents of stable-baselines3 and sb3-contrib as black boxes.

`settings` imports neither library; every other module does.
"""
