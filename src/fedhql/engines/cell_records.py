"""The budget, rows and progress of one cell, for every engine."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.engines.seeds import Stream, seeds_for
from fedhql.federation import Budget, RoundFigures
from fedhql.settings.arms import settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.records import EvaluationRow, FederationRow, RecordFile
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tensorboard import TensorBoard


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
        tensorboard: bool,
        state: Mapping[str, Any] | None,
    ) -> None:
        """Begin from a checkpoint's `state`; from the start if it is None."""
        self.settings = settings_of_arm(settings, cell.arm)
        self.cell = cell
        self.names = settings.agent_names
        self._directory, self._report, self._clock = directory, report, clock
        self._board = TensorBoard(directory.tensorboard(cell) if tensorboard else None)
        self._began = clock()
        self._mean_return: float | None = None
        # The rest is what a checkpoint holds.
        state = state or {}
        N = len(self.names)
        self.round: int = state.get("round", 0)
        self.budget = Budget(
            **state.get("budget", {"env_steps_per_agent": self._whole_budget, "agents": N})
        )
        self.best: list[float] = list(state.get("best", {}).values()) or [-np.inf] * N
        self.refused: Counter[str] = Counter(state.get("refused_answers", {}))
        self._seconds_before: float = state.get("wall_seconds", 0.0)
        lengths = state.get("record_lengths", (None, None))
        home = directory.cell(cell)
        self._evaluations = RecordFile(home / "evaluations.csv", EvaluationRow, length=lengths[0])
        self._federation = RecordFile(home / "federation.csv", FederationRow, length=lengths[1])

    @property
    def _whole_budget(self) -> int:
        return self.settings.budget.env_steps_per_agent

    def affordable_self_learning(self) -> int:
        """Return the env steps of the next self-learning phase; 0 when the budget is spent."""
        return self.budget.affordable_self_learning(
            self.settings.federation.self_learning_env_steps
        )

    def evaluation_seeds(self) -> NDArray[np.uint32]:
        episodes = self.settings.evaluation.episodes
        return np.stack(
            [
                seeds_for(self.cell.seed, Stream.EVALUATION, n, self.round, count=episodes)
                for n in range(len(self.names))
            ]
        )

    def server_seeds(self) -> NDArray[np.uint32]:
        batch = self.settings.federation.query_batch
        return seeds_for(self.cell.seed, Stream.SERVER, self.round, count=batch)

    def self_learned(self, env_steps: int) -> None:
        self.budget = self.budget.after_self_learning(env_steps)

    def evaluated(
        self,
        returns_NE: NDArray[np.float64],
        lengths_NE: NDArray[np.int64],
        diagnostics: Sequence[Mapping[str, float]],
    ) -> list[int]:
        """Record an evaluation. Return the agents that reached a new best mean return."""
        means = [float(mean) for mean in returns_NE.mean(axis=1)]
        improved = [n for n, mean in enumerate(means) if mean > self.best[n]]
        self.best = [max(pair) for pair in zip(self.best, means, strict=True)]
        self._mean_return = float(np.mean(means))
        self._evaluations.append(
            EvaluationRow(
                arm=self.cell.arm,
                seed=self.cell.seed,
                agent=name,
                own_env_steps=self.budget.own_env_steps,
                budget_env_steps=self.budget.consumed_per_agent,
                mean_return=means[n],
                best_mean_return=self.best[n],
            )
            for n, name in enumerate(self.names)
        )
        for n, name in enumerate(self.names):
            figures = {
                **diagnostics[n],
                "eval/mean_reward": means[n],
                "eval/mean_ep_length": float(lengths_NE[n].mean()),
                "time/budget_env_steps": self.budget.consumed_per_agent,
            }
            self._board.write(name, figures, self.budget.own_env_steps)
        self.tell()
        return improved

    def federated(self, budget: Budget, figures: RoundFigures) -> None:
        self.budget = budget
        row = FederationRow(
            arm=self.cell.arm,
            seed=self.cell.seed,
            round=self.round,
            own_env_steps=budget.own_env_steps,
            server_env_steps=budget.server_env_steps,
            round_server_env_steps=figures.server_env_steps,
            spread=figures.spread,
            td_error=figures.td_error,
            loss=figures.loss,
            refused_answers=figures.refused_answers,
        )
        self._federation.append([row])
        shown = ("server_env_steps", "spread", "td_error", "loss", "refused_answers")
        scalars = {f"federation/{name}": float(getattr(row, name)) for name in shown}
        self._board.write("server", scalars, row.own_env_steps)
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
            "best": dict(zip(self.names, self.best, strict=True)),
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
        write_atomically(self._directory.refused_answers(self.cell), refused + "\n")
        self._board.close()
        self._evaluations.close()
        self._federation.close()
