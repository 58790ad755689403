"""A grid of federations as one program, in which each pair of arm and seed is a lane.

`Grid` is the whole engine. Of other packages it imports only jax, numpy and optax, so it runs on a
bare GPU machine. Shape letters: L lanes (one federation each), of which the first F federate;
N agents of a federation, B server environments, A actions, E episodes.
"""
