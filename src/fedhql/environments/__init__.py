"""Environments: Gymnasium's, our JAX twins of some of them, and EnvPool's.

Import from the modules: `make`, `batch` and `replayable` need Gymnasium, `twins` and `lanes` need
JAX, `envpool_lanes` needs EnvPool. This package imports none of them, because the compiled engine
must run where only jax, numpy and optax are installed.
"""
