"""Algorithm 1.a for many lanes at once, inside a compiled program.

The equations are those of `fedhql.federation`, applied lane by lane.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.numbers import Numbers
from fedhql.compiled.cohort import CompiledCohort, Learners
from fedhql.environments.lanes import Episodes, Lanes, chosen
from fedhql.federation.td import fed_td
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein

Array = jax.Array


class ArmNumbers(NamedTuple):
    """The federation settings that may differ between lanes: (F,) each."""

    exploration: Array  # λ
    bound: Array  # b
    confidence: Array  # c
    learning_rate: Array  # α_s
    horizon_steps: Array
    query_batch: Array


class Outcome(NamedTuple):
    """What a round came to, in each lane."""

    server_env_steps: Array  # (F,)
    sums: Array  # (F, 3) spread, TD error, loss, over all server transitions
    refused: Array  # (F, N) answers left out
    unanswered: Array  # (F,) some exchange had no usable answer at all


class ServerStep(NamedTuple):
    """Lines 7 to 13 of Algorithm 1.a."""

    learners: Learners
    episodes: Episodes
    states: Array  # (F, B, D)
    actions: Array  # (F, B)
    targets: Array  # (F, B)
    ended: Array  # (F, B)
    sums: Array  # (F, 3)
    refused: Array  # (F, N)
    unanswered: Array  # (F,)


RULES: dict[str, Callable[[Array, ArmNumbers, Array], Array]] = {
    "mean-std": lambda q, arm, where: fed_ucb(q, arm.exploration, where=where),
    "bernstein": lambda q, arm, where: fed_ucb_bernstein(q, arm.bound, arm.confidence, where=where),
}


@dataclass(frozen=True)
class Server:
    """The server's part of the program."""

    cohort: CompiledCohort
    lanes: Lanes
    rule: str
    horizon_steps: int  # of the lane with the most
    discount: float
    carry_over: bool = False  # episodes that have not ended go on in the next round

    def federate(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        episodes: Episodes,
        affordable_F: Array,
    ) -> tuple[Learners, Outcome, Episodes, Array]:
        """One round in each lane, of at most `affordable_F` server steps in all.

        -> also where the episodes stand, and (M,) which of them have not ended.
        """
        F = len(affordable_F)
        B = len(self.lanes.observe(episodes)) // F
        N = sum(len(each.agents) for each in self.cohort.members)
        running = jnp.arange(B) < arms.query_batch[:, None]

        def going_on(carry: Any) -> Array:
            number, _, _, running, _, _ = carry
            more: Array = (number < self.horizon_steps) & running.any()
            return more

        def step(carry: Any) -> Any:
            number, learners, episodes, running, open_FB, outcome = carry
            wanted_F = running.sum(axis=1)
            paid_F = wanted_F <= affordable_F - outcome.server_env_steps
            running = running & (paid_F & (number < arms.horizon_steps))[:, None]
            taken = self.step(learners, numbers, arms, episodes, running)
            outcome = Outcome(
                outcome.server_env_steps + running.sum(axis=1),
                outcome.sums + taken.sums,
                outcome.refused + taken.refused,
                outcome.unanswered | taken.unanswered,
            )
            after = taken.episodes
            if self.carry_over:  # rows that took no part stay where they are
                after = chosen(running.ravel(), after, episodes)
            open_FB = open_FB & ~(running & taken.ended)
            running = running & ~taken.ended
            return number + 1, taken.learners, after, running, open_FB, outcome

        nothing = Outcome(
            jnp.zeros(F, dtype=jnp.int32),
            jnp.zeros((F, 3)),
            jnp.zeros((F, N), dtype=jnp.int32),
            jnp.zeros(F, dtype=bool),
        )
        start = (jnp.int32(0), learners, episodes, running, running, nothing)
        _, learners, episodes, _, open_FB, outcome = jax.lax.while_loop(going_on, step, start)
        return learners, outcome, episodes, open_FB.ravel()

    def step(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        episodes: Episodes,
        running_FB: Array,
    ) -> ServerStep:
        """Query, act, query, form the targets, improve; rows that do not run take no part."""
        F, B = running_FB.shape
        states_FBD = self.lanes.observe(episodes).reshape(F, B, -1)
        q_FNBA = self.cohort.q_values(learners, numbers, states_FBD)
        usable_FN = _usable(q_FNBA, running_FB)
        scores_FBA = jax.vmap(RULES[self.rule])(q_FNBA, arms, usable_FN[:, :, None, None])
        actions_FB = scores_FBA.argmax(axis=2)

        taken = self.lanes.step(episodes, actions_FB.ravel(), running_FB.ravel())
        rewards_FB, terminated_FB, ended_FB = (
            x.reshape(F, B) for x in (taken.rewards, taken.terminated, taken.ended)
        )
        next_q_FNBA = self.cohort.q_values(learners, numbers, taken.observations.reshape(F, B, -1))
        asked_FB = running_FB & ~terminated_FB  # nobody is asked about a terminal state
        next_usable_FN = _usable(next_q_FNBA, asked_FB)

        q_selected_FNB = jnp.take_along_axis(q_FNBA, actions_FB[:, None, :, None], axis=3)[..., 0]
        where_FN1 = usable_FN[:, :, None]
        q_selected_FB = q_selected_FNB.mean(axis=1, where=where_FN1)
        next_q_FBA = next_q_FNBA.mean(axis=1, where=next_usable_FN[:, :, None, None])
        targets_FB = jax.vmap(partial(_targets, discount=self.discount))(
            q_selected_FB, rewards_FB, next_q_FBA, terminated_FB, arms.learning_rate
        )
        # A row of weight 0 must be finite to count for nothing.
        improved = self.cohort.improve(
            learners,
            numbers,
            jnp.where(running_FB[:, :, None], states_FBD, 0),
            actions_FB,
            jnp.where(running_FB, targets_FB, 0),
            running_FB.astype(jnp.float32),
        )
        td_error_FB = jnp.abs(targets_FB - q_selected_FB) / arms.learning_rate[:, None]
        squares_FNB = jnp.square(targets_FB[:, None] - q_selected_FNB)
        figures = (
            q_selected_FNB.std(axis=1, where=where_FN1),
            td_error_FB,
            squares_FNB.mean(axis=1, where=where_FN1),
        )
        asked_F, asked_again_F = running_FB.any(axis=1), asked_FB.any(axis=1)
        return ServerStep(
            learners=improved,
            episodes=taken.episodes,
            states=states_FBD,
            actions=actions_FB,
            targets=targets_FB,
            ended=ended_FB,
            sums=jnp.stack([jnp.where(running_FB, x, 0).sum(axis=1) for x in figures], axis=1),
            refused=(~usable_FN).astype(jnp.int32) + ~next_usable_FN,
            unanswered=(asked_F & ~usable_FN.any(axis=1))
            | (asked_again_F & ~next_usable_FN.any(axis=1)),
        )


def _usable(q_FNBA: Array, asked_FB: Array) -> Array:
    """(F, N) whether an agent's answers at the states it was asked about are all finite."""
    return (jnp.isfinite(q_FNBA).all(axis=3) | ~asked_FB[:, None]).all(axis=2)


def _targets(
    q_selected_B: Array,
    rewards_B: Array,
    next_q_BA: Array,
    terminated_B: Array,
    learning_rate: Array,
    *,
    discount: float,
) -> Array:
    return fed_td(
        q_selected_B,
        rewards_B,
        next_q_BA,
        terminated_B,
        learning_rate=learning_rate,
        discount=discount,
    )
