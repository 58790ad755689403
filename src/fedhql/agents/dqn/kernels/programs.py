"""Launch a Triton kernel with one program for each agent."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
from jax.experimental import pallas as pl

from fedhql.environments import triton

Array = jax.Array
Reference = Any  # to an array of one agent in the GPU's memory
Part = Any  # an array whose first axis is L; inside of the program, a reference

# How tensor cores multiply float32 matrices: the products of TF32 parts, three times, have about
# the accuracy of float32. Alternatives: "highest" (no tensor cores), "tensorfloat32" (10 bits).
PRECISION = "TF32_TF32_F32_X3"

_interpreting: ContextVar[bool] = ContextVar("_interpreting")  # while a program is traced


def for_each_agent(
    program: Callable[[Any, Any], None],
    inputs: Any,
    state: Any,
    *,
    warps: int,
    interpret: bool = False,
) -> Any:
    """Run `program(inputs, state)` for each of L agents; return `state` after it.

    Both are trees of arrays whose first axis is L. The program gets the same trees with references
    to the agent's part of each array. It changes the arrays of `state` in place. `interpret` runs
    the program without a GPU, for tests.
    """
    given, given_tree = jax.tree.flatten(inputs)
    after, after_tree = jax.tree.flatten(state)

    def run(*references: Any) -> None:
        # The aliased inputs are skipped: they are the same memory as the outputs.
        outputs = references[len(given) + len(after) :]
        token = _interpreting.set(interpret)
        try:
            with jax.default_matmul_precision("highest" if interpret else PRECISION):
                own = jax.tree.unflatten(given_tree, references[: len(given)])
                program(own, jax.tree.unflatten(after_tree, outputs))
        finally:
            _interpreting.reset(token)

    call = pl.pallas_call(
        run,
        grid=(len(after[0]),),
        in_specs=[_part(array) for array in (*given, *after)],
        out_specs=[_part(array) for array in after],
        out_shape=[jax.typeof(array) for array in after],
        input_output_aliases={len(given) + number: number for number in range(len(after))},
        compiler_params=triton.compiler_params(warps),
        interpret=interpret,
        name=getattr(program, "__name__", "program").strip("_"),
    )
    return jax.tree.unflatten(after_tree, call(*given, *after))


def barrier() -> None:
    """Wait until all threads of a program see what the others have written to memory.

    Triton orders what threads read and write only inside its own operations.
    """
    if not _interpreting.get():  # the interpreter has one thread and does not know barriers
        triton.barrier()


def _part(array: Array) -> pl.BlockSpec:
    rest = array.shape[1:]
    return pl.BlockSpec((None, *rest), lambda agent: (agent, *[0] * len(rest)))
