"""The central server, Algorithm 1.a: one federation round over a cohort of black boxes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import States, Values
from fedhql.federation.auditions import act_alone, auditioning, earnings_after, heard
from fedhql.federation.budget import Budget
from fedhql.federation.cohort import Answers, Cohort, PooledAnswers
from fedhql.federation.figures import RoundFigures, count_refused, no_usable_answers
from fedhql.federation.reading import FromSums, FromValues, Reading
from fedhql.federation.replay import Replay, Transitions, replay_draws
from fedhql.federation.rules import Rule
from fedhql.federation.step import (
    action_draws,
    broadcast_rows,
    choose,
    explore,
    public_actions,
    random_probability,
    step_targets,
    step_weights,
)

Weights = Mapping[str, float]  # by agent name; empty unless the rule is weighted


class ServerEnvironments(Protocol):
    """The server's own copies of the MDP. A copy whose episode has ended is no longer stepped."""

    running: NDArray[np.int64]  # the rows whose episodes have not ended, ascending

    def reset(self, seeds: Sequence[int]) -> States:
        """Start one episode per seed. Return the states (B, *obs)."""

    def go_on(self, seeds: Sequence[int]) -> States:
        """Continue episodes that have not ended and start the others. Return the states."""

    def states(self) -> States:
        """Return the states of the copies still running."""

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[States, Values, NDArray[np.bool_], NDArray[np.bool_]]:
        """Step the copies still running. Return next states, rewards, terminated, ended.

        `ended` means terminated or truncated.
        """


@dataclass(frozen=True)
class RoundProgress:
    """The progress of a round. A server resumes from it and the environments' position."""

    steps: int = 0
    server_env_steps: int = 0
    sums: tuple[float, ...] = (0.0, 0.0, 0.0)  # of spread, TD error and loss, over transitions
    refused_answers: int = 0
    weights: Weights = field(default_factory=dict)  # by name, of the last step

    def figures(self) -> RoundFigures:
        return RoundFigures.of_sums(self.sums, self.server_env_steps, self.refused_answers)


class FederationServer:
    """The server: it queries, acts by the inter-agent rule and broadcasts FedTD targets."""

    def __init__(
        self,
        cohort: Cohort,
        environments: ServerEnvironments,
        rule: Rule,
        *,
        horizon_steps: int,
        learning_rate: float,
        discount: float,
        carry_over: bool = False,
        all_actions: bool = False,
        pessimism: float = 0.0,
        random_actions: float = 0.0,
        random_actions_env_steps: int | None = None,
        auditions: int = 0,
        public: bool = False,
        replay: Replay | None = None,
        cell: str = "",
    ) -> None:
        """Federate by `rule`; `cell` names the run in warnings and errors.

        With `public`, every round asks about the same states: the server acts by
        `public_actions`, and pays for the states in the first round only. With `replay`, every step
        also forms targets from earlier transitions. With `auditions`, each agent acts alone in so
        many environments, and agents that earn less than the median one are not heard.
        """
        self._cohort = cohort
        self._environments = environments
        self._rule = rule
        self._horizon_steps = horizon_steps
        self._learning_rate = learning_rate
        self._discount = discount
        self._carry_over = carry_over
        self._all_actions = all_actions
        self._pessimism = pessimism
        self._random_actions = random_actions
        self._random_actions_env_steps = random_actions_env_steps or 0  # 0: it is constant
        self._auditions = auditions
        self.earnings: dict[str, float] = {}  # by agent name, in auditions
        self._public = public
        self.replay = replay
        self._cell = cell
        self.refused: Counter[str] = Counter()  # agent name -> answers left out so far

    def federate(
        self,
        budget: Budget,
        seeds: Sequence[int],
        *,
        going_on: RoundProgress | None = None,
        after_step: Callable[[RoundProgress], Any] = lambda progress: None,
    ) -> tuple[Budget, RoundFigures]:
        """Run one round: one environment per seed, then up to `horizon_steps` server steps.

        The round ends early when all environments have ended or the next step would exceed the
        budget. To resume a round, pass its last progress as `going_on`; the environments must be in
        the states of that moment.
        """
        progress = going_on or RoundProgress()
        is_free = self._public and budget.server_env_steps > 0
        if going_on is not None:
            states = self._environments.states()
        else:
            begin = self._environments.go_on if self._carry_over else self._environments.reset
            states = begin(seeds)
        draws_HR = replay_draws(seeds, self._horizon_steps, self.replay.batch if self.replay else 0)
        B = len(seeds) if self._random_actions else 0
        draws_HB = action_draws(seeds, self._horizon_steps, B)
        probability = random_probability(
            self._random_actions, self._random_actions_env_steps, budget.own_env_steps
        )
        while progress.steps < self._horizon_steps:
            count, refused_before = len(states), self.refused.total()
            cost = 0 if is_free else count
            if count == 0 or cost > budget.remaining_env_steps:
                break
            budget = budget.after_server_steps(cost)
            draws = draws_HR[progress.steps], draws_HB[progress.steps]
            states, step_sums, weights = self._step(states, progress, *draws, probability)
            progress = RoundProgress(
                progress.steps + 1,
                progress.server_env_steps + count,
                tuple(a + b for a, b in zip(progress.sums, step_sums.tolist(), strict=True)),
                progress.refused_answers + self.refused.total() - refused_before,
                weights,
            )
            after_step(progress)
        return budget, progress.figures()

    def _step(
        self,
        states: States,
        before: RoundProgress,
        draws_R: NDArray[np.uint32],
        draws_B: NDArray[np.uint32],
        probability: Any,
    ) -> tuple[States, NDArray[np.float64], Weights]:
        """Run lines 7 to 13 of Algorithm 1.a for a batch of states.

        `before` is the progress so far; `draws_R` choose the transitions to recall, and `draws_B`
        the random actions, which have this `probability`. Return the next states of environments
        that still run, the sums of the figures, and the weights of this step.
        """
        count = len(states)
        recalled = self.replay.recall(draws_R) if self.replay else None
        now = self._query(states if recalled is None else np.concatenate([states, recalled.states]))
        reading = self._read(now, before.weights)
        scores_BA, rows = reading.scores()[:count], self._environments.running
        actions, A = choose(scores_BA), scores_BA.shape[1]
        if self._random_actions:
            actions = explore(actions, draws_B[rows], probability, A)
        if self._auditions:
            acts_NB = auditioning(rows, self._auditions, len(self._cohort.names))
            answers_NBA, usable_N = self._of_everyone(now)
            actions = act_alone(actions, answers_NBA[:, :count], usable_N, acts_NB)
        taken = public_actions(rows, before.steps, A) if self._public else actions
        next_states, rewards, terminated, ended = self._environments.step(taken)
        new = Transitions(states, actions, rewards, next_states, terminated)
        learned = new.and_then(recalled)
        asked = ~learned.terminated  # agents are not asked about a terminal state
        then = self._query(learned.next_states[asked]) if asked.any() else None

        weights = self._weights(now, then, learned)
        next_values_BA = np.zeros((len(asked), 1))  # after a terminal state there is no future
        if then is not None:
            asked_values = self._read(then, weights, now).lower_bound(self._pessimism)
            next_values_BA = np.zeros((len(asked), asked_values.shape[1]))
            next_values_BA[asked] = asked_values
        step = step_targets(
            self._read(now, weights),
            next_values_BA,
            learned.actions,
            learned.rewards,
            learned.terminated,
            learning_rate=self._learning_rate,
            discount=self._discount,
            all_actions=self._all_actions,
        )
        if self._all_actions:
            self._cohort.improve(*broadcast_rows(learned.states, step.targets))
        else:
            self._cohort.improve(learned.states, learned.actions, step.targets)
        if self.replay is not None:
            self.replay.remember(new)
        if self._auditions:
            before_N = self._earnings_of(self._cohort.names)
            after_N = earnings_after(before_N, rewards, usable_N, acts_NB, self._auditions)
            self.earnings |= zip(self._cohort.names, after_N.tolist(), strict=True)
        # At public states the action taken is not the one whose target is sent.
        error_B = np.full_like(step.td_error, np.nan) if self._public else step.td_error
        figures = np.stack([step.spread, error_B, step.loss])[:, :count]
        return next_states[~ended], np.sum(figures, axis=1, dtype=np.float64), weights

    def _read(
        self,
        answers: Answers | PooledAnswers,
        weights: Weights,
        acted_by: Answers | PooledAnswers | None = None,
    ) -> Reading:
        """Read answers by the rule; with auditions, those of agents that are heard.

        `acted_by` are the answers of the step by which agents acted, if these are others. Who gave
        none by which it could act is not heard.
        """
        if isinstance(answers, PooledAnswers):
            return FromSums(answers.pooled, self._rule)
        weights_N = None
        if self._rule.weighted:
            weights_N = np.array([weights.get(name, 0.0) for name in self._names(answers)])
        usable_N: NDArray[np.bool_] | bool = True
        if self._auditions:
            judged_N = np.isin(answers.members, (acted_by or answers).members)
            every_N = np.ones(len(judged_N), dtype=bool)
            usable_N = heard(self._earnings_of(self._names(answers)), every_N, judged_N)
        return FromValues(answers.q_NBA, (self._rule,), usable_N=usable_N, weights_N=weights_N)

    def _earnings_of(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Return what these agents have earned; those that are new, as little as anybody."""
        least = min(self.earnings.values(), default=0.0)
        return np.array([self.earnings.get(name, least) for name in names], dtype=np.float32)

    def _of_everyone(self, answers: Answers | PooledAnswers) -> tuple[Values, NDArray[np.bool_]]:
        """Return the answers of all agents, and which of them are usable; the others are 0."""
        assert isinstance(answers, Answers)  # settings with pooled answers are refused
        members, N = list(answers.members), len(self._cohort.names)
        q_NBA = np.zeros((N, *answers.q_NBA.shape[1:]))
        q_NBA[members] = answers.q_NBA
        return q_NBA, np.isin(np.arange(N), members)

    def _weights(
        self,
        now: Answers | PooledAnswers,
        then: Answers | PooledAnswers | None,
        rows: Transitions,
    ) -> Weights:
        """Return the weights of agents whose answers to both queries of the step were usable."""
        if not self._rule.weighted or isinstance(now, PooledAnswers):
            return {}
        both, next_q_NBA = self._names(now), np.zeros_like(now.q_NBA)
        if isinstance(then, Answers):
            both = [name for name in both if name in self._names(then)]
            next_q_NBA = next_q_NBA[: len(both)]
            next_q_NBA[:, ~rows.terminated] = then.q_NBA[list(map(self._names(then).index, both))]
        weights_N = step_weights(
            now.q_NBA[list(map(self._names(now).index, both))],
            rows.actions,
            rows.rewards,
            next_q_NBA,
            rows.terminated,
            discount=self._discount,
        )
        return dict(zip(both, weights_N.tolist(), strict=True))

    def _names(self, answers: Answers) -> list[str]:
        return [self._cohort.names[n] for n in answers.members]

    def _query(self, states: States) -> Answers | PooledAnswers:
        answers = self._cohort.query(states)
        reasons = {self._cohort.names[n]: why for n, why in answers.refused.items()}
        for name, why in reasons.items():
            count_refused(self.refused, name, why, cell=self._cell)
        if not answers.members:
            raise no_usable_answers(reasons, cell=self._cell)
        return answers
