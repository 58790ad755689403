"""The central server, Algorithm 1.a: one federation round over a cohort of black boxes."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Actions, States, Values
from fedhql.errors import NoUsableAnswers
from fedhql.federation.budget import Budget
from fedhql.federation.cohort import Answers, Cohort, PooledAnswers
from fedhql.federation.reading import Floats, Reading, Weights, reading_of
from fedhql.federation.rules import Rule
from fedhql.federation.td import all_action_targets, fed_td

log = logging.getLogger(__name__)


class ServerEnvironments(Protocol):
    """The server's own copies of the MDP. One whose episode has ended takes no more part."""

    def reset(self, seeds: Sequence[int]) -> States:
        """Start one episode per seed -> states (B, *obs)."""

    def go_on(self, seeds: Sequence[int]) -> States:
        """The same, but where an episode has not ended it goes on."""

    def states(self) -> States:
        """Of those still running."""

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[States, Values, NDArray[np.bool_], NDArray[np.bool_]]:
        """Step those still running -> next states, rewards, terminated, ended (or truncated)."""


@dataclass(frozen=True)
class RoundFigures:
    """What one federation round looked like, from the server's side; means over its steps."""

    server_env_steps: int
    spread: float  # the rule's, over agents, at the chosen actions
    td_error: float  # |r + γ max q̄' - q̄|, what FedTD moves by when α_s is 1
    loss: float  # agents' squared error to the broadcast targets, before they improve
    refused_answers: int


@dataclass(frozen=True)
class RoundProgress:
    """How far a round is. With the environments' position it is all a server needs to go on."""

    steps: int = 0
    server_env_steps: int = 0
    sums: tuple[float, ...] = (0.0, 0.0, 0.0)  # of spread, TD error and loss, over transitions
    refused_answers: int = 0
    weights: Weights = field(default_factory=dict)  # by name, of the last step

    def figures(self) -> RoundFigures:
        spread, td_error, loss = (total / max(self.server_env_steps, 1) for total in self.sums)
        return RoundFigures(self.server_env_steps, spread, td_error, loss, self.refused_answers)


class FederationServer:
    """Queries, acts by the inter-agent rule, forms FedTD targets and broadcasts them."""

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
    ) -> None:
        self._cohort = cohort
        self._environments = environments
        self._rule = rule
        self._horizon_steps = horizon_steps
        self._learning_rate = learning_rate
        self._discount = discount
        self._carry_over = carry_over
        self._all_actions = all_actions
        self.refused: Counter[str] = Counter()  # agent name -> answers left out so far

    def federate(
        self,
        budget: Budget,
        seeds: Sequence[int],
        *,
        going_on: RoundProgress | None = None,
        after_step: Callable[[RoundProgress], None] = lambda progress: None,
    ) -> tuple[Budget, RoundFigures]:
        """One round: an environment per seed, then up to `horizon_steps` server steps.

        Ends early when all environments have, or when the next step would overspend. `going_on`
        is a round's last progress, if its environments stand where they stood then.
        """
        progress = going_on or RoundProgress()
        if going_on is not None:
            states = self._environments.states()
        else:
            begin = self._environments.go_on if self._carry_over else self._environments.reset
            states = begin(seeds)
        while progress.steps < self._horizon_steps:
            count, refused_before = len(states), self.refused.total()
            if not 0 < count <= budget.remaining_env_steps:
                break
            budget = budget.after_server_steps(count)
            states, step_sums, weights = self._step(states, progress.weights)
            progress = RoundProgress(
                progress.steps + 1,
                progress.server_env_steps + count,
                tuple(a + b for a, b in zip(progress.sums, step_sums.tolist(), strict=True)),
                progress.refused_answers + self.refused.total() - refused_before,
                weights,
            )
            after_step(progress)
        return budget, progress.figures()

    def _step(self, states: States, weights: Weights) -> tuple[States, Floats, Weights]:
        """Lines 7 to 13 of Algorithm 1.a, for a batch of states; `weights` of the step before."""
        now = self._read(states)
        scores_BA = now.scores(weights)
        actions = scores_BA.argmax(axis=1)  # ties: the lowest index
        next_states, rewards, terminated, ended = self._environments.step(actions)
        asked = ~terminated  # nobody is asked about a terminal state
        then = self._read(next_states[asked]) if asked.any() else None

        weights = now.weights(actions, rewards, then, terminated, self._discount)
        next_q_BA = np.zeros_like(scores_BA)
        if then is not None:
            next_q_BA[asked] = then.centre(weights)
        q_selected, spread_B = now.chosen(actions, weights)
        exact: Any = fed_td(
            q_selected,
            rewards,
            next_q_BA,
            terminated,
            learning_rate=self._learning_rate,
            discount=self._discount,
        )
        targets: Values = exact.astype(np.float32)
        if self._all_actions:
            exact = all_action_targets(now.centre(weights), actions, targets)
            targets_BA = exact.astype(np.float32)
            self._cohort.improve(*_rows(states, targets_BA))
            loss_B = now.loss(targets_BA)
        else:
            self._cohort.improve(states, actions, targets)
            loss_B = now.loss(targets, actions)
        td_error_B = np.abs(targets - q_selected) / self._learning_rate
        figures_B = (spread_B, td_error_B, loss_B)
        return next_states[~ended], np.sum(figures_B, axis=1, dtype=np.float64), weights

    def _read(self, states: States) -> Reading:
        return reading_of(self._query(states), self._rule, self._cohort.names)

    def _query(self, states: States) -> Answers | PooledAnswers:
        answers = self._cohort.query(states)
        names = self._cohort.names
        for n, why in answers.refused.items():
            if names[n] not in self.refused:  # once an agent; the count goes on in `refused`
                log.warning("%s answered with %s and is left out of such exchanges", names[n], why)
            self.refused[names[n]] += 1
        if not answers.members:
            reasons = ", ".join(f"{names[n]}: {why}" for n, why in answers.refused.items())
            raise NoUsableAnswers(f"no agent gave an answer that can be used ({reasons})")
        return answers


def _rows(states: States, targets_BA: Values) -> tuple[States, Actions, Values]:
    """Every state once for every action: state by state, each with actions 0 to A - 1."""
    B, A = targets_BA.shape
    return np.repeat(states, A, axis=0), np.tile(np.arange(A), B), targets_BA.ravel()
