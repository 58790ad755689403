"""An improvement in one kernel equals the plain program; see `test_phase_kernel` for tolerances."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.learner import improve, improved
from fedhql.agents.dqn.optimisers import Optimiser
from tests.agents.dqn.kernels.cases import DEEP, INTERPRET, RELU, TANH, Case

# The values are larger than a unit, so the step size is scaled. The small norm clips.
SCALED = replace(RELU, improvement_steps=6, improvement_value_unit=2.0)
SGD = replace(SCALED, improvement_optimiser="sgd", improvement_max_grad_norm=1000.0)
CLIPPED = replace(SGD, improvement_max_grad_norm=0.5)


@INTERPRET
@pytest.mark.parametrize(
    ("configs", "B"), [((SCALED, TANH, DEEP), 50), ((SGD, CLIPPED, SGD), 16)], ids=["adam", "sgd"]
)
def test_an_improvement_equals_the_plain_program(
    configs: tuple[DqnConfig, ...], B: int, interpret: bool
) -> None:
    case = Case(configs)
    each = partial(
        improve, case.dqn.network, steps=6, optimiser=Optimiser(configs[0].improvement_optimiser)
    )
    kernel, rows = case.dqn.improvement_kernel, case.rows(B)
    assert kernel is not None
    rows = rows._replace(weights=rows.weights.at[-1].set(0))  # nothing for the last agent
    # Twice, because the second improvement begins with moments.
    want = got = case.learner
    for _ in range(2):
        want = jax.jit(jax.vmap(each))(want, case.numbers, *rows)
        after = jax.jit(
            lambda learner: kernel.run(learner, case.numbers, rows, interpret=interpret)
        )(got)
        got = jax.vmap(improved)(got, after, rows.weights)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_other_optimisers_have_no_kernel() -> None:
    config = replace(RELU, improvement_optimiser="rmsprop")
    assert Case((config,)).dqn.improvement_kernel is None
