"""The central server, Algorithm 1.a: one federation round over a cohort of black boxes."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import States, Values
from fedhql.errors import NoUsableAnswers
from fedhql.federation.budget import Budget
from fedhql.federation.cohort import Answers, Cohort
from fedhql.federation.td import fed_td

log = logging.getLogger(__name__)

Rule = Callable[
    [NDArray[Any]], NDArray[Any]
]  # q (N, B, A) -> scores (B, A): FedUCB with its constants bound


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
    spread: float  # population std over agents, at the chosen actions
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
    ) -> None:
        self._cohort = cohort
        self._environments = environments
        self._rule = rule
        self._horizon_steps = horizon_steps
        self._learning_rate = learning_rate
        self._discount = discount
        self._carry_over = carry_over
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
            states, step_sums = self._step(states)
            progress = RoundProgress(
                progress.steps + 1,
                progress.server_env_steps + count,
                tuple(a + b for a, b in zip(progress.sums, step_sums.tolist(), strict=True)),
                progress.refused_answers + self.refused.total() - refused_before,
            )
            after_step(progress)
        return budget, progress.figures()

    def _step(self, states: States) -> tuple[States, NDArray[np.float64]]:
        """Lines 7 to 13 of Algorithm 1.a, for a batch of states."""
        q_NBA = self._query(states).q_NBA
        actions = self._rule(q_NBA).argmax(axis=1)  # ties: the lowest index
        next_states, rewards, terminated, ended = self._environments.step(actions)
        next_q_mean = np.zeros_like(q_NBA[0])  # nobody is asked about a terminal state
        if not terminated.all():
            next_q_mean[~terminated] = self._query(next_states[~terminated]).q_NBA.mean(axis=0)

        rows = np.arange(len(states))
        q_selected_NB = q_NBA[:, rows, actions]
        q_selected = q_selected_NB.mean(axis=0)
        targets = fed_td(
            q_selected,
            rewards,
            next_q_mean,
            terminated,
            learning_rate=self._learning_rate,
            discount=self._discount,
        ).astype(np.float32)
        self._cohort.improve(states, actions, targets)
        figures_B = (
            q_selected_NB.std(axis=0),
            np.abs(targets - q_selected) / self._learning_rate,
            ((targets - q_selected_NB) ** 2).mean(axis=0),
        )
        return next_states[~ended], np.sum(figures_B, axis=1, dtype=np.float64)

    def _query(self, states: States) -> Answers:
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
