"""A multi-layer perceptron whose parameters are one vector, for NumPy and JAX arrays alike.

One vector, because an optimiser then is a handful of operations on it, whatever the shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Array = Any  # a NumPy or JAX array, returned as it came
Layers = list[tuple[Array, Array]]  # weights (in, out) and biases (out,) of each


@dataclass(frozen=True)
class Network:
    """Observations (B, D) -> action values (B, A), through hidden layers."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str  # relu, tanh, or mixed: each vector's own, given beside it

    @property
    def layers(self) -> list[tuple[int, int]]:
        return list(pairwise((self.inputs, *self.hidden, self.outputs)))

    @property
    def parameter_count(self) -> int:
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in self.layers)

    def initialise(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """As PyTorch's Linear, and so stable-baselines3: uniform in ±1/sqrt(fan in)."""
        parts = [
            rng.uniform(-(fan_in**-0.5), fan_in**-0.5, size=(fan_in + 1) * fan_out)
            for fan_in, fan_out in self.layers
        ]
        return np.concatenate(parts).astype(np.float32)

    def unpack(self, parameters_P: Array) -> Layers:
        at, unpacked = 0, []
        for fan_in, fan_out in self.layers:
            after = at + fan_in * fan_out
            weights = parameters_P[at:after].reshape(fan_in, fan_out)
            unpacked.append((weights, parameters_P[after : after + fan_out]))
            at = after + fan_out
        return unpacked

    def q_values(
        self, parameters_P: Array, states_BD: Array, tanh: Array = None, depth: Array = None
    ) -> Array:
        """-> (B, A). `tanh` and `depth` are for a mixed network."""
        return self.apply(self.unpack(parameters_P), states_BD, tanh, depth)

    def apply(
        self, layers: Layers, states_BD: Array, tanh: Array = None, depth: Array = None
    ) -> Array:
        """`q_values` of parameters that are unpacked already."""
        *hidden, (weights, biases) = layers
        x = states_BD
        for number, (hidden_weights, hidden_biases) in enumerate(hidden):
            y = x @ hidden_weights + hidden_biases
            if self.activation == "mixed":
                y = jnp.where(tanh, jnp.tanh(y), jax.nn.relu(y))
                # A layer this vector does not have hands on what came in.
                x = y if number == 0 else jnp.where(number < depth, y, x)
            else:
                x = _ACTIVATIONS[self.activation](y)
        return x @ weights + biases


def pack(layers: Layers) -> jax.Array:
    """The inverse of `Network.unpack`."""
    return jnp.concatenate([part.ravel() for layer in layers for part in layer])


def _relu(x: Array) -> Array:
    return jax.nn.relu(x) if isinstance(x, jax.Array) else np.maximum(x, 0)


def _tanh(x: Array) -> Array:
    return jnp.tanh(x) if isinstance(x, jax.Array) else np.tanh(x)


_ACTIVATIONS = {"relu": _relu, "tanh": _tanh}


def padded(networks: Sequence[Network]) -> Network:
    """The smallest mixed network that can hold each of these; itself, if they are all the same.

    Padding is exact: a unit whose weights are zero stays out of every sum and of every gradient.
    """
    first = networks[0]
    if all(network == first for network in networks):
        return first
    width = max(max(network.hidden) for network in networks)
    depth = max(len(network.hidden) for network in networks)
    return replace(first, hidden=(width,) * depth, activation="mixed")


def embed(parameters_P: Array, network: Network, into: Network) -> Array:
    """The vector of `network` as one of the padded network `into`."""
    if network == into:
        return parameters_P
    *hidden, last = network.unpack(parameters_P)
    absent = [(np.zeros((0, 0)), np.zeros(0))] * (len(into.hidden) - len(hidden))
    parts = []
    for (weights, biases), (fan_in, fan_out) in zip(
        [*hidden, *absent, last], into.layers, strict=True
    ):
        rows, columns = weights.shape
        parts.append(np.pad(weights, ((0, fan_in - rows), (0, fan_out - columns))).ravel())
        parts.append(np.pad(biases, (0, fan_out - len(biases))))
    return np.concatenate(parts).astype(np.float32)


def extract(parameters_P: Array, network: Network, held_in: Network) -> Array:
    """The inverse of `embed`."""
    if network == held_in:
        return parameters_P
    *hidden, last = held_in.unpack(parameters_P)
    present = [*hidden[: len(network.hidden)], last]
    parts = []
    for (weights, biases), (fan_in, fan_out) in zip(present, network.layers, strict=True):
        parts += [weights[:fan_in, :fan_out].ravel(), biases[:fan_out]]
    return np.concatenate(parts)
