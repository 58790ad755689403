"""Networks inside kernels: the packed parameters of a network whose sides are powers of two.

Padding with zeros is exact (see `fedhql.agents.dqn.network`). Padded outputs have the lowest number
as their bias, so that no maximum over actions finds them; their gradient is 0.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedhql.agents.dqn.kernels.matrices import Matrix, Memory, for_rows, product, side
from fedhql.agents.dqn.kernels.programs import barrier
from fedhql.agents.dqn.network import Layers, Network, pack
from fedhql.agents.dqn.numbers import Numbers

Array = jax.Array

LOWEST = float(np.finfo(np.float32).min)
MOST_WIDTH = 128  # of a layer; acting reads a whole layer at once
PIECE = 4096  # optimisers work on pieces of this size, so vectors consist of whole pieces


@dataclass(frozen=True)
class TiledNetwork:
    """A network and the padded one that kernels use; the latter's vectors have size T."""

    original: Network

    @cached_property
    def shape(self) -> Network:
        own = self.original
        hidden = tuple(side(width) for width in own.hidden)
        return replace(own, inputs=side(own.inputs), hidden=hidden, outputs=side(own.outputs))

    @property
    def size(self) -> int:
        return -(-self.shape.parameter_count // PIECE) * PIECE

    @property
    def warps(self) -> int:
        """Return how many times 32 threads work for an agent; found by trying, on an H200."""
        return 8 if max(self.shape.hidden, default=0) >= 64 else 4

    def padded(self, vectors_LP: Array, output_bias: float = 0.0) -> Array:
        """Return vectors (L, T); `output_bias` is the bias of padded outputs."""

        def one(vector_P: Array) -> Array:
            layers, shapes = self.original.unpack(vector_P), self._shapes(self.shape)
            wide: Layers = []
            for number, (layer, sizes) in enumerate(zip(layers, shapes, strict=True)):
                bias = output_bias if number == len(self.original.hidden) else 0.0
                wide.append((_grown(layer[0], sizes[0], 0.0), _grown(layer[1], sizes[1], bias)))
            return _grown(pack(wide), (self.size,), 0.0)

        return jax.vmap(one)(vectors_LP)

    def cut(self, vectors_LT: Array) -> Array:
        """Return the vectors (L, P), the inverse of `padded`."""

        def one(vector_T: Array) -> Array:
            layers, shapes = self.shape.unpack(vector_T), self._shapes(self.original)
            return pack(
                [
                    (weights[: sizes[0][0], : sizes[0][1]], biases[: sizes[1][0]])
                    for (weights, biases), sizes in zip(layers, shapes, strict=True)
                ]
            )

        return jax.vmap(one)(vectors_LT)

    def layers(self, vector: Memory) -> tuple[list[tuple[Matrix, int]], list[tuple[Matrix, int]]]:
        """Return the hidden layers and the heads: weights, and where their biases begin."""
        found, at = [], 0
        for (rows, columns), (biases,) in self._shapes(self.shape):
            after = at + rows * columns
            found.append((Matrix(vector, at, rows, columns), after))
            at = after + biases
        return found[: len(self.shape.hidden)], found[len(self.shape.hidden) :]

    @property
    def depths(self) -> tuple[int, ...]:
        """Return after how many hidden layers each head reads."""
        return self.shape.heads or (len(self.shape.hidden),)

    @staticmethod
    def _shapes(network: Network) -> list[Any]:
        layers = network.unpack(np.zeros(network.parameter_count))
        return [(weights.shape, biases.shape) for weights, biases in layers]


@dataclass(frozen=True)
class Workspace:
    """Where activations and their gradients are kept, for B rows; `size` numbers in all."""

    network: TiledNetwork
    rows: int

    @property
    def size(self) -> int:
        return sum(2 * self.rows * width for width in self._widths)

    @property
    def _widths(self) -> tuple[int, ...]:
        shape = self.network.shape
        return (shape.inputs, *shape.hidden, shape.outputs)

    def activations(self, memory: Memory) -> list[Matrix]:
        """Return the inputs and the outputs of each hidden layer."""
        return self._matrices(memory, 0)[:-1]

    def gradients(self, memory: Memory) -> list[Matrix]:
        """Return the gradients before each hidden layer's activation, and of the action values."""
        return self._matrices(memory, self.size // 2)[1:]

    def _matrices(self, memory: Memory, at: int) -> list[Matrix]:
        found = []
        for width in self._widths:
            found.append(Matrix(memory, at, self.rows, width))
            at += self.rows * width
        return found


def vector(numbers: tuple[Any, ...], size: int) -> Array:
    """Return scalars as one vector, filled up with zeros; Triton cannot join arrays."""
    places, joined = jnp.arange(size), jnp.zeros(size, dtype=jnp.float32)
    for place, number in enumerate(numbers):
        joined = jnp.where(places == place, jnp.asarray(number).astype(jnp.float32), joined)
    return joined


def values_of_one(
    network: TiledNetwork, parameters: Memory, numbers: Numbers, state_D: Array
) -> Array:
    """Return the action values (A,) of one state; tensor cores would need 16 rows or more."""
    hidden, heads = network.layers(parameters)
    activations = [state_D]
    for layer in hidden:
        sums = _times(activations[-1], layer) + _biases(layer)
        activations.append(_activated(network, numbers, sums))
    q_A = _biases(heads[0])
    for depth, head in zip(network.depths, heads, strict=True):
        q_A = q_A + _if_depth(network, numbers, depth, _times(activations[depth], head))
    return q_A


def forward(
    network: TiledNetwork,
    parameters: Memory,
    numbers: Numbers,
    activations: list[Matrix],
    row: int | Array,
    rows: int,
) -> Array:
    """Write the hidden activations of some rows; return their action values (rows, A)."""
    hidden, heads = network.layers(parameters)
    for number, layer in enumerate(hidden):
        sums = product(activations[number], layer[0], row, rows) + _biases(layer)[None]
        activations[number + 1].put(row, _activated(network, numbers, sums))
        barrier()
    q = jnp.broadcast_to(_biases(heads[0])[None], (rows, network.shape.outputs))
    for depth, head in zip(network.depths, heads, strict=True):
        q = q + _if_depth(network, numbers, depth, product(activations[depth], head[0], row, rows))
    return q


def backward(
    network: TiledNetwork,
    parameters: Memory,
    numbers: Numbers,
    activations: list[Matrix],
    gradients: list[Matrix],
    row: int | Array,
    rows: int,
) -> None:
    """Write the gradients before each activation; the last of `gradients` holds those of q."""
    hidden, heads = network.layers(parameters)
    for number in reversed(range(len(hidden))):
        parts = [
            _if_depth(network, numbers, depth, product(gradients[-1], head[0].transpose, row, rows))
            for depth, head in zip(network.depths, heads, strict=True)
            if depth == number + 1
        ]
        if number + 1 < len(hidden):
            parts.append(product(gradients[number + 1], hidden[number + 1][0].transpose, row, rows))
        outputs = activations[number + 1].block(row, rows, 0, activations[number + 1].columns)
        gradients[number].put(row, sum(parts[1:], parts[0]) * _slope(network, numbers, outputs))
        barrier()


def parameter_gradient(
    network: TiledNetwork,
    numbers: Numbers,
    activations: list[Matrix],
    gradients: list[Matrix],
    result: Memory,
) -> None:
    """Write the gradient of all parameters, from activations and gradients of all rows."""
    hidden, heads = network.layers(result)
    for number, layer in enumerate(hidden):
        _layer_gradient(layer, activations[number], gradients[number], has_biases=True)
    for number, (depth, head) in enumerate(zip(network.depths, heads, strict=True)):
        share = _if_depth(network, numbers, depth, jnp.float32(1))
        _layer_gradient(
            head, activations[depth], gradients[-1], has_biases=number == 0, share=share
        )
    barrier()


def _layer_gradient(
    layer: tuple[Matrix, int],
    inputs: Matrix,
    outputs: Matrix,
    *,
    has_biases: bool,
    share: Array | float = 1.0,
) -> None:
    weights, biases_at = layer

    def block(row: int | Array, rows: int, _: None) -> None:
        weights.put(row, share * product(inputs.transpose, outputs, row, rows))

    for_rows(weights.rows, block)
    if has_biases:

        def add(row: int | Array, rows: int, sums: Array) -> Array:
            return sums + outputs.block(row, rows, 0, outputs.columns).sum(axis=0)

        sums = for_rows(outputs.rows, add, jnp.zeros(outputs.columns))
        weights.memory.write(biases_at + jnp.arange(outputs.columns), sums)


def _times(row_K: Array, layer: tuple[Matrix, int]) -> Array:
    weights, _ = layer
    return (row_K[:, None] * weights.block(0, weights.rows, 0, weights.columns)).sum(axis=0)


def _biases(layer: tuple[Matrix, int]) -> Array:
    weights, at = layer
    return weights.memory.read(at + jnp.arange(weights.columns))


def _if_depth(network: TiledNetwork, numbers: Numbers, depth: int, value: Any) -> Any:
    """Return the value if this agent's head is at `depth`, else 0."""
    return jnp.where(numbers.depth == depth, value, 0.0) if network.shape.heads else value


def _activated(network: TiledNetwork, numbers: Numbers, sums: Array) -> Array:
    # CUDA's tanh has branches and takes longer than everything else of a small layer. This one is
    # off by at most 2e-7.
    tanh = 1 - 2 / (jnp.exp(2 * sums) + 1)
    return _by_activation(network, numbers, jnp.maximum(sums, 0.0), tanh)


def _slope(network: TiledNetwork, numbers: Numbers, outputs: Array) -> Array:
    """Return the derivative of the activation, from its outputs."""
    relu = (outputs > 0).astype(jnp.float32)
    return _by_activation(network, numbers, relu, 1 - outputs * outputs)


def _by_activation(network: TiledNetwork, numbers: Numbers, relu: Array, tanh: Array) -> Array:
    match network.shape.activation:
        case "mixed":
            return jnp.where(numbers.tanh, tanh, relu)
        case "tanh":
            return tanh
        case _:
            return relu


def _grown(array: Array, shape: tuple[int, ...], value: float) -> Array:
    more = [(0, new - old) for new, old in zip(shape, array.shape, strict=True)]
    return jnp.pad(array, more, constant_values=value)
