"""Algorithm 1.a for many lanes at once, inside a compiled program.

The equations are those of `fedhql.federation`, applied lane by lane.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.numbers import Numbers
from fedhql.compiled.compiled_cohort import CompiledCohort, Learners
from fedhql.environments.lanes import Episodes, Lanes, chosen
from fedhql.federation.attacks import attacked
from fedhql.federation.pooling import bellman_weights, weights_among
from fedhql.federation.rules import rule_named
from fedhql.federation.td import all_action_targets, fed_td

Array = jax.Array


class ArmNumbers(NamedTuple):
    """The federation settings that may differ between lanes: (F,) each."""

    exploration: Array  # λ
    bound: Array  # b
    confidence: Array  # c
    trim: Array
    learning_rate: Array  # α_s
    horizon_steps: Array
    query_batch: Array
    rule: Array  # which of the server's
    carry_over: Array  # whether episodes that have not ended go on in the next round
    attack: Array  # by its number
    attackers: Array


class Outcome(NamedTuple):
    """What a round came to, in each lane."""

    server_env_steps: Array  # (F,)
    sums: Array  # (F, 3) spread, TD error, loss, over all server transitions
    refused: Array  # (F, N) answers left out
    unanswered: Array  # (F,) some exchange had no usable answer at all


class ServerStep(NamedTuple):
    """Lines 7 to 13 of Algorithm 1.a. R rows are broadcast: B, or B · A for all actions."""

    learners: Learners
    episodes: Episodes
    actions: Array  # (F, R)
    targets: Array  # (F, R)
    ended: Array  # (F, B)
    weights: Array | None  # (F, N) in a weighted rule
    sums: Array  # (F, 3)
    refused: Array  # (F, N)
    unanswered: Array  # (F,)


@dataclass(frozen=True)
class Server:
    """The server's part of the program."""

    cohort: CompiledCohort
    lanes: Lanes
    rules: tuple[str, ...]  # of all lanes, each once
    horizon_steps: int  # of the lane with the most
    discount: float
    carry_over: bool = False  # some lane does
    all_actions: bool = False  # targets for every action, not the chosen one alone
    attacked: bool = False  # in some lane

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
            number, _, _, running, *_ = carry
            more: Array = (number < self.horizon_steps) & running.any()
            return more

        def step(carry: Any) -> Any:
            number, learners, episodes, running, open_FB, weights_FN, outcome = carry
            wanted_F = running.sum(axis=1)
            paid_F = wanted_F <= affordable_F - outcome.server_env_steps
            running = running & (paid_F & (number < arms.horizon_steps))[:, None]
            taken = self.step(learners, numbers, arms, episodes, running, weights_FN, number)
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
            return number + 1, taken.learners, after, running, open_FB, taken.weights, outcome

        nothing = Outcome(
            jnp.zeros(F, dtype=jnp.int32),
            jnp.zeros((F, 3)),
            jnp.zeros((F, N), dtype=jnp.int32),
            jnp.zeros(F, dtype=bool),
        )
        # In a weighted rule nothing is known of anybody at a round's start.
        weights_FN = jnp.zeros((F, N)) if self.is_weighted(arms) else None
        start = (jnp.int32(0), learners, episodes, running, running, weights_FN, nothing)
        _, learners, episodes, _, open_FB, _, outcome = jax.lax.while_loop(going_on, step, start)
        return learners, outcome, episodes, (open_FB & arms.carry_over[:, None]).ravel()

    def is_weighted(self, arms: ArmNumbers) -> bool:
        """Whether some lane's rule is."""
        return any(rule_named(name, arms).weighted for name in self.rules)

    def step(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        episodes: Episodes,
        running_FB: Array,
        weights_FN: Array | None,
        number: Array,
    ) -> ServerStep:
        """Query, act, query, form the targets, improve; rows that do not run take no part.

        `weights_FN` are a weighted rule's, of the step before; `number` counts a round's steps.
        """
        F, B = running_FB.shape
        states_FBD = self.lanes.observe(episodes).reshape(F, B, -1)
        ask = partial(self._answers, learners, numbers, arms)
        q_FNBA, usable_FN = ask(states_FBD, running_FB, 2 * number)
        counted = usable_FN, _counted(weights_FN, usable_FN)
        scores_FBA = self._read("scores", q_FNBA, arms, counted)
        actions_FB = scores_FBA.argmax(axis=2)

        taken = self.lanes.step(episodes, actions_FB.ravel(), running_FB.ravel())
        rewards_FB, terminated_FB, ended_FB = (
            x.reshape(F, B) for x in (taken.rewards, taken.terminated, taken.ended)
        )
        asked_FB = running_FB & ~terminated_FB  # nobody is asked about a terminal state
        next_states_FBD = taken.observations.reshape(F, B, -1)
        next_q_FNBA, next_usable_FN = ask(next_states_FBD, asked_FB, 2 * number + 1)

        q_selected_FNB = jnp.take_along_axis(q_FNBA, actions_FB[:, None, :, None], axis=3)[..., 0]
        if weights_FN is not None:
            weights = jax.vmap(partial(bellman_weights, discount=self.discount))(
                q_selected_FNB, rewards_FB, next_q_FNBA, terminated_FB, where=running_FB
            )
            weights_FN = jnp.where(usable_FN & next_usable_FN, weights, 0)
        counted = usable_FN, _counted(weights_FN, usable_FN)
        q_selected_FB = self._read("centre", q_selected_FNB, arms, counted)
        next_counted = next_usable_FN, _counted(weights_FN, next_usable_FN)
        targets_FB = jax.vmap(partial(fed_td, discount=self.discount))(
            q_selected_FB,
            rewards_FB,
            self._read("centre", next_q_FNBA, arms, next_counted),
            terminated_FB,
            learning_rate=arms.learning_rate,
        )
        rows = states_FBD, actions_FB, targets_FB, running_FB
        squares_FNB = jnp.square(targets_FB[:, None] - q_selected_FNB)
        if self.all_actions:
            centre_FBA = self._read("centre", q_FNBA, arms, counted)
            targets_FBA = jax.vmap(all_action_targets)(centre_FBA, actions_FB, targets_FB)
            rows = _rows(states_FBD, targets_FBA, running_FB)
            squares_FNB = jnp.square(targets_FBA[:, None] - q_FNBA).mean(axis=3)
        td_error_FB = jnp.abs(targets_FB - q_selected_FB) / arms.learning_rate[:, None]
        figures = (
            self._read("spread", q_selected_FNB, arms, counted),
            td_error_FB,
            squares_FNB.mean(axis=1, where=usable_FN[:, :, None]),
        )
        asked_F, asked_again_F = running_FB.any(axis=1), asked_FB.any(axis=1)
        return ServerStep(
            learners=self._improved(learners, numbers, *rows),
            episodes=taken.episodes,
            actions=rows[1],
            targets=rows[2],
            ended=ended_FB,
            weights=weights_FN,
            sums=jnp.stack([jnp.where(running_FB, x, 0).sum(axis=1) for x in figures], axis=1),
            refused=(~usable_FN).astype(jnp.int32) + ~next_usable_FN,
            unanswered=(asked_F & ~usable_FN.any(axis=1))
            | (asked_again_F & ~next_usable_FN.any(axis=1)),
        )

    def _answers(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        states_FBD: Array,
        asked_FB: Array,
        exchange: Array,
    ) -> tuple[Array, Array]:
        """What the server hears, (F, N, B, A), and (F, N) whose answers it can use."""
        q_FNBA = self.cohort.q_values(learners, numbers, states_FBD)
        usable_FN = _usable(q_FNBA, asked_FB)
        if self.attacked:
            q_FNBA = jax.vmap(partial(attacked, exchange=exchange))(
                q_FNBA, arms.attack, arms.attackers, usable=usable_FN, asked=asked_FB
            )
            usable_FN = _usable(q_FNBA, asked_FB)
        return q_FNBA, usable_FN

    def _read(
        self,
        what: Literal["scores", "centre", "spread"],
        q_FN: Array,
        arms: ArmNumbers,
        counted: tuple[Array, Array | None],
    ) -> Array:
        """By its rule, lane by lane, over agents: (F, N, ...) -> (F, ...).

        `counted`: who takes part (F, N), and how much each of them counts in a weighted rule.
        """

        def of_lane(q_N: Array, arm: ArmNumbers, counted: tuple[Array, Array | None]) -> Array:
            rules = [rule_named(name, arm) for name in self.rules]
            pooled: list[Array] = [
                getattr(rule, what)(q_N, where=counted[rule.weighted]) for rule in rules
            ]
            return pooled[0] if len(rules) == 1 else jnp.stack(pooled)[arm.rule]

        return jax.vmap(of_lane)(q_FN, arms, counted)

    def _improved(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        states_FRD: Array,
        actions_FR: Array,
        targets_FR: Array,
        running_FR: Array,
    ) -> Learners:
        # A row of weight 0 must be finite to count for nothing.
        return self.cohort.improve(
            learners,
            numbers,
            jnp.where(running_FR[:, :, None], states_FRD, 0),
            actions_FR,
            jnp.where(running_FR, targets_FR, 0),
            running_FR.astype(jnp.float32),
        )


def _usable(q_FNBA: Array, asked_FB: Array) -> Array:
    """(F, N) whether an agent's answers at the states it was asked about are all finite."""
    return (jnp.isfinite(q_FNBA).all(axis=3) | ~asked_FB[:, None]).all(axis=2)


def _counted(weights_FN: Array | None, usable_FN: Array) -> Array | None:
    """How much each of them counts in a weighted rule."""
    return None if weights_FN is None else jax.vmap(weights_among)(weights_FN, usable_FN)


def _rows(
    states_FBD: Array, targets_FBA: Array, running_FB: Array
) -> tuple[Array, Array, Array, Array]:
    """Every state once for every action: state by state, each with actions 0 to A - 1."""
    F, B, A = targets_FBA.shape
    return (
        jnp.repeat(states_FBD, A, axis=1),
        jnp.tile(jnp.arange(A), (F, B)),
        targets_FBA.reshape(F, B * A),
        jnp.repeat(running_FB, A, axis=1),
    )
