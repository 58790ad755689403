"""GPU kernels that run a whole self-learning phase, one program for each agent.

XLA runs a phase as tens of small GPU kernels for every chunk, and most of the time is spent between
them. These kernels (Pallas on Triton) call the same functions on tiles: the layers of one agent as
matrices whose sides are powers of two.
"""
