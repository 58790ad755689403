"""The budget, rows and progress of one cell, for every engine."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.config import SILENT_UNITS
from fedhql.engines.evaluation import Evaluation, moments_of, points_passed, short
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.errors import RunDirectoryError
from fedhql.federation import Budget, RoundFigures
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.records import (
    CONSENSUS,
    SELF_LEARNING,
    EvaluationRow,
    FederationRow,
    RecordFile,
)
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import Tracking


@dataclass(frozen=True)
class Progress:
    """How far a cell has come, for the display."""

    cell: Cell
    consumed_env_steps: float  # per agent
    mean_return: float | None  # of the last evaluation, over agents


class CellRecords:
    """The records of one cell. A checkpoint holds their state; on resume, files are cut to it."""

    def __init__(
        self,
        settings: ExperimentSettings,
        cell: Cell,
        directory: RunDirectory,
        *,
        report: Callable[[Progress], None],
        clock: Callable[[], float],
        tracking: Tracking,
        state: Mapping[str, Any] | None,
    ) -> None:
        """Begin from a checkpoint's `state`; from the start if it is None."""
        self.settings = settings_of_arm(settings, cell.arm)
        self.cell = cell
        self.names = settings.agent_names
        self._interval = settings.evaluation_interval  # also for an arm with other rounds
        self._directory, self._report, self._clock = directory, report, clock
        self._began = clock()
        self._mean_return: float | None = None
        # The rest is what a checkpoint holds.
        if state and "evaluations" not in state:
            raise RunDirectoryError(
                f"{directory.path}: an older version of fedhql began this run, and this version "
                "evaluates at other times; finish it with that version, or give another directory"
            )
        state = state or {}
        N = len(self.names)
        self.round: int = state.get("round", 0)
        self.budget = Budget(
            **state.get("budget", {"env_steps_per_agent": self._whole_budget, "agents": N})
        )
        # For each moment, the best mean return of each policy, and the number of evaluations.
        self._best: dict[str, list[float]] = state.get("best", {})
        self._evaluated: Counter[str] = Counter(state.get("evaluations", {}))
        self.refused: Counter[str] = Counter(state.get("refused_answers", {}))
        self._seconds_before: float = state.get("wall_seconds", 0.0)
        lengths = state.get("record_lengths", (None, None))
        home = directory.cell(cell)
        with ExitStack() as opened:
            self._evaluations = RecordFile(
                home / "evaluations.csv", EvaluationRow, length=lengths[0]
            )
            opened.enter_context(closing(self._evaluations))
            self._federation = RecordFile(home / "federation.csv", FederationRow, length=lengths[1])
            opened.enter_context(closing(self._federation))
            title = f"{directory.name} {cell}"
            self._trackers = tracking.start(partial(directory.tracked, cell), title)
            for tracker in self._trackers:
                opened.enter_context(closing(tracker))
            self._open = opened.pop_all()

    @property
    def _whole_budget(self) -> int:
        return self.settings.budget.env_steps_per_agent

    def affordable_self_learning(self) -> int:
        """Return the env steps of the next self-learning phase; 0 when the budget is spent."""
        return self.budget.affordable_self_learning(
            self.settings.federation.self_learning_env_steps
        )

    def due(self, moment: str, *, at_the_end: bool = False) -> int:
        """Return how many evaluations to take at this moment, now.

        A round may pass two of the points at which one is due. Then there are two, with seeds of
        their own, so that every arm has the same number of evaluations.
        """
        if moment not in self._moments:
            return 0
        consumed = self._whole_budget if at_the_end else self.budget.consumed_per_agent
        passed = points_passed(consumed, self._interval, self._whole_budget)
        return passed - self._evaluated[moment]

    @property
    def _moments(self) -> tuple[str, ...]:
        chosen = self.settings.evaluation.moments
        return moments_of(chosen) if federates(self.cell.arm) else (SELF_LEARNING,)

    def evaluation_seeds(self, moment: str) -> NDArray[np.uint32]:
        """Return the seeds (P, E) of the next evaluation: of the agents, then the consensus."""
        episodes, number = self.settings.evaluation.episodes, self._evaluated[moment]
        streams: list[tuple[Stream, *tuple[int, ...]]] = [
            (Stream.EVALUATION, n, number) for n in range(len(self.names))
        ]
        if federates(self.cell.arm):
            streams.append((Stream.CONSENSUS, number))
        return np.stack([seeds_for(self.cell.seed, *of, count=episodes) for of in streams])

    def server_seeds(self) -> NDArray[np.uint32]:
        federation = self.settings.federation
        number = 0 if federation.public else self.round  # public states are always the same
        return seeds_for(self.cell.seed, Stream.SERVER, number, count=federation.query_batch)

    @property
    def next_round_is_free(self) -> bool:
        """Return whether the states of the next round are paid for."""
        return self.settings.federation.public and self.budget.server_env_steps > 0

    def self_learned(self, env_steps: int) -> None:
        self.budget = self.budget.after_self_learning(env_steps)

    def evaluated(
        self, moment: str, played: Evaluation, diagnostics: Sequence[Mapping[str, float]]
    ) -> list[int]:
        """Record an evaluation. Return the agents that reached a new best mean return."""
        policies = [*self.names, CONSENSUS][: len(played.returns)]
        means = [float(mean) for mean in played.returns.mean(axis=1)]
        before = self._best.get(moment, [-np.inf] * len(policies))
        self._best[moment] = best = [max(pair) for pair in zip(before, means, strict=True)]
        self._evaluated[moment] += 1
        self._mean_return = float(np.mean(means[: len(self.names)]))
        of_agents = [*diagnostics, {}][: len(policies)]
        self._evaluations.append(
            EvaluationRow(
                arm=self.cell.arm,
                seed=self.cell.seed,
                agent=name,
                own_env_steps=self.budget.own_env_steps,
                budget_env_steps=self.budget.consumed_per_agent,
                mean_return=means[n],
                best_mean_return=best[n],
                after=moment,
                start_value=short(played.start_values[n].mean()),
                discounted_return=short(played.discounted[n].mean()),
                silent_units=short(of_agents[n].get(SILENT_UNITS, np.nan)),
            )
            for n, name in enumerate(policies)
        )
        for n, name in enumerate(policies):
            figures = {
                **of_agents[n],
                "eval/mean_reward": means[n],
                "eval/mean_ep_length": float(played.lengths[n].mean()),
                "eval/start_value": float(played.start_values[n].mean()),
                "eval/discounted_reward": float(played.discounted[n].mean()),
                "time/budget_env_steps": self.budget.consumed_per_agent,
            }
            curve = name if moment == self._moments[0] else f"{name}, after rounds"
            for tracker in self._trackers:
                tracker.write(curve, figures, self.budget.own_env_steps)
        self.tell()
        # One moment chooses the best state, so that every arm has as many to choose from.
        is_first = moment == self._moments[0]
        return [n for n in range(len(self.names)) if is_first and means[n] > before[n]]

    def federated(self, budget: Budget, figures: RoundFigures) -> None:
        charged = budget.server_env_steps - self.budget.server_env_steps
        self.budget = budget
        row = FederationRow(
            arm=self.cell.arm,
            seed=self.cell.seed,
            round=self.round,
            own_env_steps=budget.own_env_steps,
            server_env_steps=budget.server_env_steps,
            round_server_env_steps=charged,
            spread=figures.spread,
            td_error=figures.td_error,
            loss=figures.loss,
            refused_answers=figures.refused_answers,
        )
        self._federation.append([row])
        shown = ("server_env_steps", "spread", "td_error", "loss", "refused_answers")
        scalars = {f"federation/{name}": float(getattr(row, name)) for name in shown}
        for tracker in self._trackers:
            tracker.write("server", scalars, row.own_env_steps)
        self.tell()

    def tell(self, learned_in_phase: float = 0) -> None:
        """Report progress. The budget does not include the steps of the current phase yet."""
        consumed = self.budget.consumed_per_agent + learned_in_phase
        self._report(Progress(self.cell, consumed, self._mean_return))

    def state(self) -> dict[str, Any]:
        return self._figures() | {
            "record_lengths": [self._evaluations.length(), self._federation.length()]
        }

    def _figures(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "budget": vars(self.budget),
            "best": self._best,
            "evaluations": dict(self._evaluated),
            "refused_answers": dict(self.refused),
            "wall_seconds": self._seconds_before + self._clock() - self._began,
        }

    def finish(self, **more: Any) -> None:
        """Write the cell's result. A cell with a result is finished."""
        # Report the whole budget: the rest may be a fraction that no agent can use.
        self._report(Progress(self.cell, float(self._whole_budget), self._mean_return))
        result = json.dumps(self._figures() | more, indent=2)
        write_atomically(self._directory.result(self.cell), result + "\n")

    def close(self) -> None:
        # In a file of its own, because a cell that stops with an error has no result.
        refused = json.dumps(self.refused)
        with self._open:
            write_atomically(self._directory.refused_answers(self.cell), refused + "\n")
