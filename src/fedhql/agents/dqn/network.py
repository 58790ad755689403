"""A multi-layer perceptron whose parameters are one vector, for NumPy and JAX arrays.

With one vector an optimiser needs only a few operations, for any shape of network.

Networks of different shapes can share one program. A mixed network is as wide in each layer as the
widest of them, and has an output head at the depth of each. Padding is exact: a unit whose weights
are all zero adds nothing to any sum or gradient, so its weights stay zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Array = Any  # a NumPy or JAX array; results have the same type
Layers = list[tuple[Array, Array]]  # weights (in, out) and biases (out,) of each layer


@dataclass(frozen=True)
class Network:
    """The shape of a network that maps observations (B, D) to action values (B, A)."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str  # relu, tanh, or mixed: each lane passes its own
    heads: tuple[int, ...] = ()  # in a mixed network: after how many hidden layers each head reads

    @property
    def _sizes(self) -> list[tuple[int, int, int]]:
        """Return inputs, outputs and biases of the hidden layers and then of the heads."""
        widths = (self.inputs, *self.hidden)
        hidden = [(fan_in, fan_out, fan_out) for fan_in, fan_out in pairwise(widths)]
        heads = [(widths[depth], self.outputs, 0) for depth in self.heads or (len(self.hidden),)]
        # The first head of a mixed network holds the output biases, as each agent has one head.
        return [*hidden, (heads[0][0], self.outputs, self.outputs), *heads[1:]]

    @property
    def parameter_count(self) -> int:
        return sum(fan_in * fan_out + biases for fan_in, fan_out, biases in self._sizes)

    def initialise(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw parameters as PyTorch's Linear does: uniform in ±1/sqrt(fan in)."""
        parts = [
            rng.uniform(-(fan_in**-0.5), fan_in**-0.5, size=fan_in * fan_out + biases)
            for fan_in, fan_out, biases in self._sizes
        ]
        return np.concatenate(parts).astype(np.float32)

    def unpack(self, parameters_P: Array) -> Layers:
        at, unpacked = 0, []
        for fan_in, fan_out, biases in self._sizes:
            after = at + fan_in * fan_out
            weights = parameters_P[at:after].reshape(fan_in, fan_out)
            unpacked.append((weights, parameters_P[after : after + biases]))
            at = after + biases
        return unpacked

    def q_values(
        self, parameters_P: Array, states_BD: Array, tanh: Array = None, depth: Array = None
    ) -> Array:
        """Return the action values (B, A). A mixed network needs `tanh` and `depth`."""
        return self.apply(self.unpack(parameters_P), states_BD, tanh, depth)

    def apply(
        self, layers: Layers, states_BD: Array, tanh: Array = None, depth: Array = None
    ) -> Array:
        """Return the action values (B, A) for unpacked parameters."""
        hidden, heads = layers[: len(self.hidden)], layers[len(self.hidden) :]
        activations = [states_BD]
        for weights, biases in hidden:
            activations.append(self.activate(activations[-1] @ weights + biases, tanh))
        q_BA = heads[0][1]
        if not self.heads:
            return activations[-1] @ heads[0][0] + q_BA
        for after, (weights, _) in zip(self.heads, heads, strict=True):
            q_BA = q_BA + jnp.where(depth == after, activations[after] @ weights, 0)
        return q_BA

    def silent_units(self, parameters_P: Array, states_SD: Array, tanh: Array = None) -> Array:
        """Return the share of ReLU units that are 0 at all of these states; NaN for tanh."""
        xp = parameters_P.__array_namespace__()
        silent = units = 0
        below_SU = states_SD
        for weights, biases in self.unpack(parameters_P)[: len(self.hidden)]:
            below_SU = self.activate(below_SU @ weights + biases, tanh)
            is_unit_U = (weights != 0).any(axis=0) | (biases != 0)  # padding has no weights
            silent = silent + (is_unit_U & (below_SU == 0).all(axis=0)).sum()
            units = units + is_unit_U.sum()
        is_tanh = tanh if self.activation == "mixed" else self.activation == "tanh"
        return xp.where(is_tanh, xp.nan, silent / xp.maximum(units, 1))

    def readers(self, hidden_layer: int) -> list[int]:
        """Return the numbers of the layers that read the outputs of this hidden layer."""
        count, depth = len(self.hidden), hidden_layer + 1
        heads = enumerate(self.heads or (count,))
        return [*range(depth, count)[:1], *(count + at for at, after in heads if after == depth)]

    def activate(self, x: Array, tanh: Array = None) -> Array:
        if self.activation == "mixed":
            return jnp.where(tanh, jnp.tanh(x), jax.nn.relu(x))
        if isinstance(x, jax.Array):
            return jnp.tanh(x) if self.activation == "tanh" else jax.nn.relu(x)
        return np.tanh(x) if self.activation == "tanh" else np.maximum(x, 0)


def pack(layers: Layers) -> jax.Array:
    """Join layers into one vector, the inverse of `Network.unpack`."""
    return jnp.concatenate([part.ravel() for layer in layers for part in layer])


def padded(networks: Sequence[Network]) -> Network:
    """Return the smallest mixed network that holds all of these; equal networks need none."""
    first = networks[0]
    if all(network == first for network in networks):
        return first
    depths = sorted({len(network.hidden) for network in networks})
    widths = tuple(
        max(network.hidden[layer] for network in networks if len(network.hidden) > layer)
        for layer in range(depths[-1])
    )
    return Network(first.inputs, widths, first.outputs, "mixed", tuple(depths))


def embed(parameters_P: Array, network: Network, into: Network) -> Array:
    """Return the parameters of `network` as parameters of the padded network `into`."""
    if network == into:
        return parameters_P
    vector = np.zeros(into.parameter_count, dtype=np.float32)
    _copy(network.unpack(parameters_P), _held(into.unpack(vector), network, into))
    return vector


def extract(parameters_P: Array, network: Network, held_in: Network) -> Array:
    """Return the parameters of `network` out of a padded network, the inverse of `embed`."""
    if network == held_in:
        return parameters_P
    vector = np.zeros(network.parameter_count, dtype=np.float32)
    _copy(_held(held_in.unpack(parameters_P), network, held_in), network.unpack(vector))
    return vector


def _held(layers: Layers, network: Network, into: Network) -> Layers:
    """Return views of the padded network's layers that hold those of `network`."""
    depth = len(network.hidden)
    heads = layers[len(into.hidden) :]
    head = (heads[into.heads.index(depth)][0], heads[0][1])
    own = zip(
        [*layers[:depth], head], network.unpack(np.zeros(network.parameter_count)), strict=True
    )
    return [
        (weights[: mine.shape[0], : mine.shape[1]], biases[: len(bias)])
        for (weights, biases), (mine, bias) in own
    ]


def _copy(source: Layers, target: Layers) -> None:
    for (weights, biases), (to_weights, to_biases) in zip(source, target, strict=True):
        to_weights[:], to_biases[:] = weights, biases
