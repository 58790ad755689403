"""Matrices in the GPU's memory, and their products by blocks.

Triton holds tiles in registers and cannot cut them. A matrix as large as a layer would fill all
registers, so products read blocks from memory, which caches serve. Sides are powers of two.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedhql.agents.dqn.kernels.programs import Reference
from fedhql.environments import triton

Array = jax.Array

SMALLEST_SIDE = 16  # of a matrix that tensor cores multiply
BLOCK = 4096  # the most numbers in a block of the right factor
MOST_ROWS = 32  # of a block of the left factor


def side(size: int) -> int:
    """Return the side of a matrix that holds `size` numbers."""
    return max(SMALLEST_SIDE, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Memory:
    """A vector in memory, whose addresses the compiler cannot compute in advance.

    The addresses in a loop do not change from turn to turn. The compiler would compute all of them
    before the loop and keep them in registers, far more than there are. `clock` differs from turn
    to turn; it is less than 2^30, so what is added to addresses is 0.
    """

    reference: Reference
    clock: Array
    _uses: Iterator[int] = field(default_factory=count)

    @property
    def size(self) -> int:
        return self.reference.shape[0]

    def read(self, index: Array) -> Array:
        return triton.load(self.reference.at[index + self._opaque_zero()])

    def write(self, index: Array, values: Array) -> None:
        triton.store(self.reference.at[index + self._opaque_zero()], values)

    def _opaque_zero(self) -> Array:
        # A multiple of 16 lets Triton read 16 bytes at once.
        return ((self.clock + next(self._uses)) >> 30) * 16


@dataclass(frozen=True)
class Matrix:
    """A matrix inside a vector in memory."""

    memory: Memory
    at: int
    rows: int
    columns: int
    transposed: bool = False  # the rows are the columns of what is in memory

    @property
    def transpose(self) -> "Matrix":
        return Matrix(self.memory, self.at, self.columns, self.rows, not self.transposed)

    def block(self, row: int | Array, rows: int, column: int | Array, columns: int) -> Array:
        """Read a part of the matrix."""
        return self.memory.read(self._index(row, rows, column, columns))

    def put(self, row: int | Array, tile: Array) -> None:
        """Write whole rows."""
        self.memory.write(self._index(row, len(tile), 0, tile.shape[1]), tile)

    def _index(self, row: int | Array, rows: int, column: int | Array, columns: int) -> Array:
        down, right = (1, self.rows) if self.transposed else (self.columns, 1)
        rows_R, columns_C = row + jnp.arange(rows), column + jnp.arange(columns)
        return self.at + rows_R[:, None] * down + columns_C[None] * right


def product(left: Matrix, right: Matrix, row: int | Array, rows: int) -> Array:
    """Return some rows of left @ right."""
    depth = left.columns
    block = min(depth, max(SMALLEST_SIDE, BLOCK // right.columns))

    def add(number: int | Array, tile: Array) -> Array:
        at = number * block
        factors = left.block(row, rows, at, block), right.block(at, block, 0, right.columns)
        return tile + jnp.dot(*factors)

    return repeat(depth // block, add, jnp.zeros((rows, right.columns)))


def for_rows(rows: int, do: Callable[[int | Array, int, Any], Any], carry: Any = None) -> Any:
    """Call do(first row, rows, carry) for each block of rows; return the last carry."""
    block = min(rows, MOST_ROWS)
    return repeat(rows // block, lambda number, carry: do(number * block, block, carry), carry)


def repeat(times: int, do: Callable[[int | Array, Any], Any], carry: Any) -> Any:
    """Loop, without a loop if there is one turn."""
    return do(0, carry) if times == 1 else lax.fori_loop(0, times, do, carry)
