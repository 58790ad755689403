"""Environments: Gymnasium's, our JAX twins of some, and EnvPool's; no room's import needs them all.

The names are in the modules: `make`, `batch`, `replayable` (Gymnasium); `twins`, `lanes` (JAX);
`envpool_lanes`. The compiled engine must run where only jax, numpy and optax are installed.
"""
