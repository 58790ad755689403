"""Algorithm 1.a for many lanes at once, inside a compiled program.

`fedhql.federation.step` computes actions, targets, weights and figures for each lane. This module
adds the queries, the environments and the masks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedhql.agents.dqn.numbers import Numbers
from fedhql.compiled.compiled_cohort import CompiledCohort, Learners
from fedhql.compiled.replay import Memories, recall, remember
from fedhql.compiled.round_arrays import ArmNumbers, Draws, Outcome, ServerStep
from fedhql.environments.lanes import Episodes, Lanes, chosen
from fedhql.federation import auditions
from fedhql.federation.attacks import attacked
from fedhql.federation.reading import FromValues
from fedhql.federation.replay import Transitions
from fedhql.federation.rules import rule_named, rule_spec
from fedhql.federation.step import (
    StepTargets,
    choose,
    explore,
    public_actions,
    step_targets,
    step_weights,
)

Array = jax.Array


@dataclass(frozen=True)
class Server:
    """The server's part of the program."""

    cohort: CompiledCohort
    lanes: Lanes
    rules: tuple[str, ...]  # the rules of all lanes, each once
    horizon_steps: int  # the largest of all lanes
    discount: float
    carry_over: bool = False  # whether some lane does
    all_actions: bool = False  # whether every action gets a target, or only the chosen one
    pessimistic: bool = False  # whether some lane is
    exploring: bool = False  # whether some lane takes random actions
    attacked: bool = False  # whether some lane has attackers

    def federate(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        episodes: Episodes,
        memories: Memories | None,
        earnings_FN: Array | None,
        draws: Draws,
        affordable_F: Array,
    ) -> tuple[Learners, Outcome, Episodes, Array, Memories | None, Array | None]:
        """Run one round of at most `affordable_F` server env steps in each lane.

        Return the learners, the outcome, the episodes, (M,) which episodes the next round
        continues, the memories, and what the agents have earned in auditions.
        """
        F = len(affordable_F)
        B = len(self.lanes.observe(episodes)) // F
        N = sum(len(each.agents) for each in self.cohort.members)
        running = jnp.arange(B) < arms.query_batch[:, None]

        def going_on(carry: Any) -> Array:
            number, _, _, running, *_ = carry
            return (number < self.horizon_steps) & running.any()

        def step(carry: Any) -> Any:
            number, learners, episodes, running, memories, open_FB, known_FN, outcome = carry
            wanted_F = running.sum(axis=1)
            paid_F = wanted_F <= affordable_F - outcome.server_env_steps
            running = running & (paid_F & (number < arms.horizon_steps))[:, None]
            recalled = None
            if memories is not None:
                recalled = recall(memories, draws.recalled[number], arms.replay_capacity)
            weights_FN, earnings_FN = known_FN
            given = learners, numbers, arms, episodes, running, weights_FN, earnings_FN, number
            at_random = draws.actions[number], draws.random_probability
            taken = self.step(*given, at_random, recalled)
            if memories is not None:
                memories = remember(memories, taken.transitions, running)
            outcome = Outcome(
                outcome.server_env_steps + running.sum(axis=1),
                outcome.sums + taken.sums,
                outcome.refused + taken.refused,
                outcome.unanswered | taken.unanswered,
            )
            after = taken.episodes
            if self.carry_over:  # rows that took no step keep their episodes
                after = chosen(running.ravel(), after, episodes)
            open_FB = open_FB & ~(running & taken.ended)
            running = running & ~taken.ended
            return (
                number + 1,
                taken.learners,
                after,
                running,
                memories,
                open_FB,
                (taken.weights, taken.earnings),
                outcome,
            )

        nothing = Outcome(
            jnp.zeros(F, dtype=jnp.int32),
            jnp.zeros((F, 3)),
            jnp.zeros((F, N), dtype=jnp.int32),
            jnp.zeros(F, dtype=bool),
        )
        # With weights of 0, all agents count equally in the first step of a round.
        weights_FN = jnp.zeros((F, N)) if self.is_weighted else None
        known_FN = weights_FN, earnings_FN
        start = (jnp.int32(0), learners, episodes, running, memories, running, known_FN, nothing)
        end = jax.lax.while_loop(going_on, step, start)
        _, learners, episodes, _, memories, open_FB, (_, earnings_FN), outcome = end
        open_M = (open_FB & arms.carry_over[:, None]).ravel()
        return learners, outcome, episodes, open_M, memories, earnings_FN

    @property
    def is_weighted(self) -> bool:
        """Return whether some lane has a weighted rule."""
        return any(rule_spec(name).weighted for name in self.rules)

    def step(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        episodes: Episodes,
        running_FB: Array,
        weights_FN: Array | None,
        earnings_FN: Array | None,
        number: Array,
        at_random: tuple[Array, Array],
        recalled: tuple[Transitions, Array] | None = None,
    ) -> ServerStep:
        """Query, act, query again, form the targets and improve, in all running rows.

        `weights_FN` are the weights of the previous step, for a weighted rule, and `earnings_FN`
        what agents had earned then in auditions. `number` counts the steps of a round. `at_random`
        are (F, B) draws for random actions and (F,) their probability. `recalled` are earlier
        transitions, and (F,) whether there are any; their rows X follow those of the environments.
        """
        F, B = running_FB.shape
        states_FBD = self.lanes.observe(episodes).reshape(F, B, -1)
        old, states_FXD, used_FX = None, states_FBD, running_FB
        if recalled is not None:
            old, held_F = recalled
            is_asked_FR = jnp.arange(old.actions.shape[1]) < arms.replay_batch[:, None]
            is_asked_FR &= (held_F & running_FB.any(axis=1))[:, None]
            states_FXD = jnp.concatenate([states_FBD, old.states], axis=1)
            used_FX = jnp.concatenate([running_FB, is_asked_FR], axis=1)
        ask = partial(self._answers, learners, numbers, arms)
        q_FNXA, usable_FN = ask(states_FXD, used_FX, 2 * number)
        heard_FN = _heard(earnings_FN, usable_FN)
        actions_FB = jax.vmap(lambda *of_lane: choose(self._read(*of_lane).scores()))(
            q_FNXA, heard_FN, weights_FN, arms
        )[:, :B]

        A = q_FNXA.shape[3]
        if self.exploring:
            draws_FB, probability_F = at_random
            actions_FB = explore(actions_FB, draws_FB, probability_F[:, None], A)
        acts_FNB = None
        if earnings_FN is not None:
            N = q_FNXA.shape[1]
            acts_FNB = jax.vmap(lambda n: auditions.auditioning(jnp.arange(B), n, N))(
                arms.auditions
            )
            of_rows = q_FNXA[:, :, :B], usable_FN, acts_FNB
            actions_FB = jax.vmap(auditions.act_alone)(actions_FB, *of_rows)
        public_B = public_actions(jnp.arange(B), number, A)
        acted_FB = jnp.where(arms.public[:, None], public_B, actions_FB)
        taken = self.lanes.step(episodes, acted_FB.ravel(), running_FB.ravel())
        rewards_FB, terminated_FB, ended_FB = (
            x.reshape(F, B) for x in (taken.rewards, taken.terminated, taken.ended)
        )
        next_states_FBD = taken.observations.reshape(F, B, -1)
        new = Transitions(states_FBD, actions_FB, rewards_FB, next_states_FBD, terminated_FB)
        rows = new.and_then(old)
        asked_FX = used_FX & ~rows.terminated  # agents are not asked about a terminal state
        next_q_FNXA, next_usable_FN = ask(rows.next_states, asked_FX, 2 * number + 1)

        step = rows.actions, rows.rewards, rows.terminated
        now = q_FNXA, heard_FN
        # Who gave no answer by which it could act is not heard about the next states.
        judged_FN = usable_FN | (arms.auditions == 0)[:, None]
        then = next_q_FNXA, _heard(earnings_FN, next_usable_FN, judged_FN)
        if weights_FN is not None:
            usable = (q_FNXA, usable_FN), (next_q_FNXA, next_usable_FN)
            weights_FN = jax.vmap(self._weights)(*usable, *step, used_FX)
        formed: StepTargets = jax.vmap(self._targets)(now, then, *step, weights_FN, arms)
        # At public states the action taken is not the one whose target is sent.
        error_FX = jnp.where(arms.public[:, None], jnp.nan, formed.td_error)
        if acts_FNB is not None:
            earnings_FN = jax.vmap(auditions.earnings_after)(
                earnings_FN,
                rewards_FB,
                usable_FN & running_FB.any(axis=1)[:, None],
                acts_FNB & running_FB[:, None],
                arms.auditions,
            )
        figures = (x[:, :B] for x in (formed.spread, error_FX, formed.loss))
        asked_F, asked_again_F = running_FB.any(axis=1), asked_FX.any(axis=1)
        return ServerStep(
            learners=self._improved(
                learners, numbers, states_FXD, rows.actions, formed.targets, used_FX
            ),
            episodes=taken.episodes,
            actions=rows.actions,
            targets=formed.targets,
            ended=ended_FB,
            transitions=new,
            weights=weights_FN,
            earnings=earnings_FN,
            sums=jnp.stack([jnp.where(running_FB, x, 0).sum(axis=1) for x in figures], axis=1),
            refused=(~usable_FN).astype(jnp.int32) + ~next_usable_FN,
            unanswered=(asked_F & ~usable_FN.any(axis=1))
            | (asked_again_F & ~next_usable_FN.any(axis=1)),
        )

    def centre(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        arms: ArmNumbers,
        states_FBD: Array,
        asked_FB: Array,
    ) -> Array:
        """Return the centre of all agents' answers, with equal weights: (F, B, A).

        It is NaN if no answer is usable.
        """
        exchange = jnp.int32(0)
        q_FNBA, usable_FN = self._answers(learners, numbers, arms, states_FBD, asked_FB, exchange)
        weights_FN = jnp.zeros(usable_FN.shape) if self.is_weighted else None
        centre_FBA = jax.vmap(lambda *of_lane: self._read(*of_lane).centre())(
            q_FNBA, usable_FN, weights_FN, arms
        )
        return jnp.where(usable_FN.any(axis=1)[:, None, None], centre_FBA, jnp.nan)

    # Parts of a step in one lane

    def _read(
        self, q_NBA: Array, usable_N: Array, weights_N: Array | None, arm: ArmNumbers
    ) -> FromValues:
        rules = [rule_named(name, arm.rule_numbers) for name in self.rules]
        return FromValues(q_NBA, rules, rule=arm.rule, usable_N=usable_N, weights_N=weights_N)

    def _weights(
        self,
        now: tuple[Array, Array],
        then: tuple[Array, Array],
        actions_B: Array,
        rewards_B: Array,
        terminated_B: Array,
        running_B: Array,
    ) -> Array:
        """Return the weights of agents whose answers to both queries of the step were usable."""
        (q_NBA, usable_N), (next_q_NBA, next_usable_N) = now, then
        weights_N = step_weights(
            q_NBA,
            actions_B,
            rewards_B,
            next_q_NBA,
            terminated_B,
            discount=self.discount,
            running_B=running_B,
        )
        return jnp.where(usable_N & next_usable_N, weights_N, 0)

    def _targets(
        self,
        now: tuple[Array, Array],
        then: tuple[Array, Array],
        actions_B: Array,
        rewards_B: Array,
        terminated_B: Array,
        weights_N: Array | None,
        arm: ArmNumbers,
    ) -> StepTargets:
        pessimism = arm.pessimism if self.pessimistic else 0.0
        return step_targets(
            self._read(*now, weights_N, arm),
            self._read(*then, weights_N, arm).lower_bound(pessimism),
            actions_B,
            rewards_B,
            terminated_B,
            learning_rate=arm.learning_rate,
            discount=self.discount,
            all_actions=self.all_actions,
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
        """Return the answers (F, N, B, A), and (F, N) which agents' answers are usable."""
        q_FNBA = self.cohort.q_values(learners, numbers, states_FBD)
        usable_FN = _usable(q_FNBA, asked_FB)
        if self.attacked:
            q_FNBA = jax.vmap(partial(attacked, exchange=exchange))(
                q_FNBA, arms.attack, arms.attackers, usable=usable_FN, asked=asked_FB
            )
            usable_FN = _usable(q_FNBA, asked_FB)
        return q_FNBA, usable_FN

    def _improved(
        self,
        learners: Learners,
        numbers: tuple[Numbers, ...],
        states_FXD: Array,
        actions_FX: Array,
        targets: Array,
        used_FX: Array,
    ) -> Learners:
        used_FX1 = used_FX[:, :, None]
        # Weight 0 removes a row only if its numbers are finite.
        return self.cohort.improve(
            learners,
            numbers,
            jnp.where(used_FX1, states_FXD, 0),
            None if self.all_actions else actions_FX,
            jnp.where(used_FX1 if self.all_actions else used_FX, targets, 0),
            used_FX.astype(jnp.float32),
        )


def _usable(q_FNBA: Array, asked_FB: Array) -> Array:
    """Return (F, N) whether an agent's answers at the states asked about are all finite."""
    return (jnp.isfinite(q_FNBA).all(axis=3) | ~asked_FB[:, None]).all(axis=2)


def _heard(earnings_FN: Array | None, usable_FN: Array, judged_FN: Array | None = None) -> Array:
    if earnings_FN is None:
        return usable_FN
    return jax.vmap(auditions.heard)(earnings_FN, usable_FN, judged_FN)
