"""fedhql's own DQN: pure JAX functions over many agents at once, and a black-box agent.

It needs only jax, numpy and optax (and Gymnasium for single agents), so that the compiled engine
runs on a bare GPU machine. Shape letters here: L lanes (agents learning side by side in one
program), P parameters of a network, D numbers in an observation, A actions, B rows of a batch.
"""
