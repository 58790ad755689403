"""A phase in one kernel equals the plain program, step by step.

Pallas' interpreter runs the kernels without a GPU. It groups floating-point sums differently, and
the kernel's tanh is off by 2e-7. After ten training steps parameters are equal to 1e-5; a wrong
gradient, pick or moment changes them by a learning rate, 1e-2. Rounding could change an action, and
with it all that follows; with these seeds it does not.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedhql.agents.dqn.config import DqnConfig
from fedhql.agents.dqn.kernels.updates import Update
from fedhql.agents.dqn.optimisers import Optimiser
from fedhql.agents.dqn.phases import (
    advance,
    advance_side_by_side,
    is_steady,
    phase_kernel,
    self_learn_by_kernel,
)
from fedhql.agents.dqn.population import Population
from fedhql.environments.lanes import TwinLanes
from fedhql.environments.twins import TWINS
from tests.agents.dqn.kernels.cases import DEEP, INTERPRET, PHASE, RELU, TANH, Case

SGD = replace(RELU, optimizer="sgd", gradient_steps=2, double=True, warm_up="policy")
CASES = {
    "relu and adam": (RELU,),
    "tanh": (replace(TANH, target_update_interval=3, tau=0.3),),
    "full replay": (replace(RELU, buffer_size=30),),
    "mixed": (RELU, TANH, DEEP),
    "sgd, double, two steps": (SGD, replace(SGD, learning_rate=0.1, max_grad_norm=0.01)),
    "more rows than a block": (replace(RELU, batch_size=64, target_update_interval=8),),
}


@INTERPRET
@pytest.mark.parametrize("name", CASES)
def test_a_phase_equals_the_plain_program(name: str, interpret: bool) -> None:
    _, experience = by_kernel_as_plain(Case(CASES[name]), interpret=interpret)
    assert experience.replay[..., -1].any()  # some episode has ended at the goal


@INTERPRET
@pytest.mark.parametrize("env_id", TWINS)
def test_a_phase_of_classic_control_equals_the_plain_program(env_id: str, interpret: bool) -> None:
    assert TWINS[env_id].in_kernels
    short = TwinLanes(replace(TWINS[env_id], step_limit=15))  # episodes are truncated and begin
    small = replace(RELU, hidden=(8,), exploration_final_eps=0.5)
    _, experience = by_kernel_as_plain(Case((small,), short), interpret=interpret)
    assert (experience.episodes.elapsed < 15).all()


@INTERPRET
def test_first_phases_without_warm_up_equal_the_plain_program(interpret: bool) -> None:
    """Agents learn from the first step on; two of them anneal ε in each phase."""
    config = replace(SGD, learning_starts=0, exploration_fraction=0.5, exploration_initial_eps=0.9)
    phased = replace(config, exploration_annealing="phase")
    case = Case((config, phased, replace(phased, exploration_fraction=1.0)))
    assert is_steady(case.dqn, 0, PHASE)
    first = by_kernel_as_plain(case, case.new, interpret=interpret)
    by_kernel_as_plain(case, first, interpret=interpret)


def by_kernel_as_plain(
    case: Case, before: Population | None = None, *, interpret: bool
) -> Population:
    """Run a phase by both programs; return the kernel's result, which must equal the other.

    It begins from the population `before`, or where the case's first phase has ended.
    """
    learner, experience = before or (case.learner, case.experience)
    begin = int(experience.env_steps)
    draws, until = case.draws(experience, begin), begin + PHASE
    plain = case.plain(learner, experience, draws, until)
    by_kernel = partial(self_learn_by_kernel, case.dqn, interpret=interpret)
    after = jax.jit(by_kernel)(learner, experience, case.numbers, draws, jnp.int32(until))
    assert_same(plain, after)
    return after


@INTERPRET
def test_phases_side_by_side_equal_phases_in_turn(interpret: bool) -> None:
    """Two populations of different shapes learn for two phases."""
    cases = Case((replace(RELU, hidden=(6,)),)), Case((TANH,))
    dqns, numbers = tuple(c.dqn for c in cases), tuple(c.numbers for c in cases)
    in_turn = [(c.learner, c.experience) for c in cases]
    side_by_side = jax.tree.map(jnp.copy, in_turn)  # programs reuse the memory of their arguments
    for begin in (PHASE, 2 * PHASE):
        until = begin + PHASE
        in_turn = [
            advance(dqn, *population, number, begin, until)
            for dqn, population, number in zip(dqns, in_turn, numbers, strict=True)
        ]
        learners, experiences = zip(*side_by_side, strict=True)
        side_by_side = advance_side_by_side(
            dqns, learners, experiences, numbers, begin, until, interpret=interpret
        )
    for one, other in zip(in_turn, side_by_side, strict=True):
        assert_same(one, other)
        assert other[1].env_steps == 3 * PHASE


def assert_same(one: Population, other: Population) -> None:
    trees = [(learner, seen.replay, seen.episodes) for learner, seen in (one, other)]
    for a, b in zip(*map(jax.tree.leaves, trees), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"exploration": "ucb"},
        {"batch_size": 24},
        {"batch_size": 8},
        {"hidden": (256,)},
        {"hidden": ()},
        {"train_freq": 3},
        {"optimizer": "rmsprop"},
        {"optimizer": "sgd", "optimizer_kwargs": (("momentum", 0.9),)},
    ],
)
def test_other_settings_have_no_kernel(other: dict[str, Any]) -> None:
    config: DqnConfig = replace(RELU, **other)
    assert phase_kernel(Case((config,)).dqn) is None


def test_updates_know_the_keywords_of_adam() -> None:
    keywords = (("betas", (0.8, 0.9)), ("eps", 1e-3), ("weight_decay", 0.0))
    assert Update.of(Optimiser("adam", keywords)) == Update((0.8, 0.9), 1e-3)
    assert Update.of(Optimiser("adam", (("eps", 0.0),))) is None
    assert Update.of(Optimiser("adam", (("weight_decay", 0.1),))) is None
