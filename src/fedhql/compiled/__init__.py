"""A grid of federations as one program: arms times seeds side by side as lanes.

`Grid` is the whole engine. It imports jax, numpy, optax and our own arrays-only modules, nothing
else, so it runs on a bare GPU machine. Shape letters: L lanes (one federation each), of which the
first F federate; N agents of a federation, B server environments, A actions, E episodes.
"""
