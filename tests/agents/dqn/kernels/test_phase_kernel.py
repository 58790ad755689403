"""A phase in one kernel equals the plain program, step by step.

Pallas' interpreter runs the kernels without a GPU. It groups floating-point sums differently, and
the kernel's tanh is off by 2e-7. After ten training steps parameters are equal to 1e-5; a wrong
gradient, pick or moment changes them by a learning rate, 1e-2. Rounding could change an action, and
with it all that follows; with these seeds it does not.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.kernels.updates import Update
from fedhql.agents.dqn.learner import begin_self_learning
from fedhql.agents.dqn.optimisers import Optimiser
from tests.agents.dqn.kernels.cases import COSTLY, DEEP, INTERPRET, LANES, PHASE, RELU, TANH, Case

SGD = replace(RELU, optimizer="sgd", gradient_steps=2, double=True, warm_up="policy")
CASES = {
    "relu and adam": ((RELU,), LANES),
    "tanh and costly restarts": ((replace(TANH, target_update_interval=3, tau=0.3),), COSTLY),
    "full replay": ((replace(RELU, buffer_size=30),), LANES),
    "mixed": ((RELU, TANH, DEEP), LANES),
    "sgd, double, two steps": ((SGD, replace(SGD, learning_rate=0.1, max_grad_norm=0.01)), LANES),
    "more rows than a block": ((replace(RELU, batch_size=64, target_update_interval=8),), LANES),
}


@INTERPRET
@pytest.mark.parametrize("name", CASES)
def test_a_phase_equals_the_plain_program(name: str, interpret: bool) -> None:
    case = Case(*CASES[name])
    kernel, draws = case.dqn.phase_kernel, case.draws(case.experience, PHASE)
    assert kernel is not None
    want = case.plain(case.learner, case.experience, draws, 2 * PHASE, steady=True)

    def by_kernel() -> Any:
        learner = jax.vmap(begin_self_learning)(case.learner, case.numbers)
        given = learner, case.experience, case.numbers, draws
        return kernel.run(*given, interpret=interpret)

    learner, experience = jax.jit(by_kernel)()
    assert experience.replay[..., -1].any()  # some episode has ended at the goal
    expected = jax.tree.leaves((want[0], want[1].replay, want[1].episodes))
    found = jax.tree.leaves((learner, experience.replay, experience.episodes))
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"exploration": "ucb"},
        {"batch_size": 24},
        {"batch_size": 8},
        {"hidden": (256,)},
        {"optimizer": "rmsprop"},
        {"optimizer": "sgd", "optimizer_kwargs": (("momentum", 0.9),)},
    ],
)
def test_other_settings_have_no_kernel(other: dict[str, Any]) -> None:
    config: DqnConfig = replace(RELU, **other)
    assert Case((config,)).dqn.phase_kernel is None


def test_updates_know_the_keywords_of_adam() -> None:
    keywords = (("betas", (0.8, 0.9)), ("eps", 0.0), ("weight_decay", 0.0))
    assert Update.of(Optimiser("adam", keywords)) == Update((0.8, 0.9), 0.0)
    assert Update.of(Optimiser("adam", (("weight_decay", 0.1),))) is None
