"""Run cells as lanes of one compiled grid, with the same rows and files as cell by cell."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray

from fedhql.agents.dqn.agent import export_policy
from fedhql.agents.dqn.network import Network
from fedhql.engines.best_states import evaluate_best
from fedhql.engines.build_grid import build_grid
from fedhql.engines.cell_records import CellRecords, Progress
from fedhql.engines.evaluation import Evaluation
from fedhql.engines.grid_plan import read_states
from fedhql.environments.compiled import resolved
from fedhql.federation import RoundFigures
from fedhql.federation.cohort import NOT_FINITE
from fedhql.federation.figures import count_refused, no_usable_answers
from fedhql.settings.arms import federates
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.checkpoints import Checkpoints
from fedhql.storage.files import locked, whole_directory
from fedhql.storage.records import ROUND, SELF_LEARNING
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import Tracking

MOST_STEPS = 2**31 - 1
Policy = tuple[Network, NDArray[np.float32]]


def finish_grid(
    settings: ExperimentSettings,
    cells: Sequence[Cell],
    directory: RunDirectory,
    home: Path,
    *,
    report: Callable[[Progress], None],
    clock: Callable[[], float],
    track: Sequence[str],
) -> None:
    """Run cells side by side, from the checkpoint in `home` if any, until budgets are spent."""
    with locked(home, wait=True):
        if all(directory.result(cell).exists() for cell in cells):
            return
        with ExitStack() as opened:
            run = _GridRun(settings, cells, directory, home, report, clock, Tracking(track), opened)
            run.until_budgets_are_spent()


class _GridRun:
    def __init__(
        self,
        settings: ExperimentSettings,
        cells: Sequence[Cell],
        directory: RunDirectory,
        home: Path,
        report: Callable[[Progress], None],
        clock: Callable[[], float],
        tracking: Tracking,
        opened: ExitStack,
    ) -> None:
        """Begin, or continue from the last checkpoint. `opened` closes what this opens."""
        self._directory = directory
        self._cells = sorted(cells, key=lambda cell: not federates(cell.arm))  # federated first
        self._federated = sum(federates(cell.arm) for cell in cells)
        self._checkpoints = Checkpoints(home, clock)
        checkpoint = self._checkpoints.latest()
        states = read_states(checkpoint) if checkpoint else {}
        # A resumed grid keeps its environment and its padding, also on another kind of device.
        self._settings = settings = _resolved(settings, states.get("implementation"))
        self._grid = build_grid(
            settings,
            self._cells,
            self._on_self_learned,
            pad=states.get("padded"),
            backwards=int(home.name) % 2 == 1,
        )
        self._best: dict[tuple[int, int], Policy] = {}  # not on disk yet
        self._learned_in_phase = 0.0
        if checkpoint is not None:
            self._checkpoints.seconds_spent = states["checkpoint_seconds"]
            self._grid.restore(checkpoint)
        self._records = [
            opened.enter_context(
                closing(
                    CellRecords(
                        settings,
                        cell,
                        directory,
                        report=report,
                        clock=clock,
                        tracking=tracking,
                        state=states["cells"][str(cell)] if states else None,
                    )
                )
            )
            for cell in self._cells
        ]

    def until_budgets_are_spent(self) -> None:
        if self._grid.env_steps == 0:
            self._checkpoint()
        if jax.default_backend() == "gpu":  # on a CPU, other processes have the other cores
            evaluation = self._settings.evaluation
            self._grid.compile_ahead(
                evaluation.episodes, self._query_batch(), evaluation.episode_step_limit
            )
        while running := self._running_lanes():
            self._self_learn(running)
            self._evaluate(running, SELF_LEARNING)
            self._federate(running)
            self._evaluate(running, ROUND)
            for lane in running:
                self._records[lane].round += 1
            ended = sorted({*running} - {*self._running_lanes()})
            for moment in (SELF_LEARNING, ROUND):
                self._evaluate(ended, moment, at_the_end=True)
            self._finish(ended)
            if self._checkpoints.due():
                self._checkpoint()
        self._checkpoints.discard()

    def _running_lanes(self) -> list[int]:
        return [n for n, records in enumerate(self._records) if records.affordable_self_learning()]

    def _self_learn(self, running: Sequence[int]) -> None:
        env_steps = np.array([records.affordable_self_learning() for records in self._records])
        self._running = running
        self._grid.self_learn(self._grid.env_steps + env_steps)
        self._learned_in_phase = 0.0
        for lane in running:
            self._records[lane].self_learned(int(env_steps[lane]))

    def _on_self_learned(self, agents: int, env_steps: int) -> None:
        """Report that some agents have learned in every lane. Budgets are charged once all have."""
        self._learned_in_phase += agents * env_steps / len(self._settings.agents)
        for lane in self._running:
            records = self._records[lane]
            records.tell(min(self._learned_in_phase, records.affordable_self_learning()))

    def _evaluate(self, running: Sequence[int], moment: str, *, at_the_end: bool = False) -> None:
        """Evaluate lanes as often as is due; all lanes play, and those that are due record it."""
        while due := [
            lane for lane in running if self._records[lane].due(moment, at_the_end=at_the_end)
        ]:
            seeds = [records.evaluation_seeds(moment) for records in self._records]
            limit = self._settings.evaluation.episode_step_limit
            N = len(self._settings.agents)
            seeds_LNE = np.stack([of_P[:N] for of_P in seeds])
            seeds_FE = None
            if self._grid.plays_together or any(lane < self._federated for lane in due):
                of_F = np.array([of_P[N] for of_P in seeds[: self._federated]], dtype=np.uint32)
                seeds_FE = of_F.reshape(self._federated, seeds_LNE.shape[2])
            of_agents, of_consensus = self._grid.evaluate(seeds_LNE, limit, seeds_FE)
            figures_LN = self._grid.diagnostics()
            for lane in due:
                played = [figure[lane] for figure in of_agents]
                if lane < self._federated:
                    both = zip(played, of_consensus, strict=True)
                    played = [np.vstack([agents, common[lane]]) for agents, common in both]
                self._record(lane, moment, Evaluation(*played), figures_LN)

    def _record(
        self,
        lane: int,
        moment: str,
        played: Evaluation,
        figures_LN: Mapping[str, NDArray[np.float64]],
    ) -> None:
        records = self._records[lane]
        steps = {"time/total_timesteps": float(records.budget.own_env_steps)}
        diagnostics = [
            {tag: float(of_LN[lane, n]) for tag, of_LN in figures_LN.items()} | steps
            for n in range(len(self._settings.agents))
        ]
        for n in records.evaluated(moment, played, diagnostics):
            self._best[lane, n] = self._grid.policy(lane, n)

    def _federate(self, running: Sequence[int]) -> None:
        """Run a round in the running lanes that can pay for its first step."""
        records_F = self._records[: self._federated]
        remaining = [records.budget.remaining_env_steps for records in records_F]
        affordable_F = np.array(
            [
                0
                if lane not in running or len(records.server_seeds()) > left
                else MOST_STEPS
                if records.next_round_is_free
                else left
                for lane, (records, left) in enumerate(zip(records_F, remaining, strict=True))
            ]
        )
        if not affordable_F.any():
            return
        seeds_FB = np.zeros((self._federated, self._query_batch()), dtype=np.uint32)
        for lane, records in enumerate(records_F):
            seeds = records.server_seeds()
            seeds_FB[lane, : len(seeds)] = seeds
        own_F = np.array([records.budget.own_env_steps for records in records_F])
        outcome = self._grid.federate(seeds_FB, affordable_F, own_F)
        steps_F, sums, refused_FN, unanswered_F = (np.asarray(figure) for figure in outcome)
        for lane in np.flatnonzero(affordable_F).tolist():
            records = self._records[lane]
            cell, refused_N = str(records.cell), refused_FN[lane]
            for name, count in zip(records.names, refused_N.tolist(), strict=True):
                if count:
                    count_refused(records.refused, name, NOT_FINITE, count, cell=cell)
            if unanswered_F[lane]:
                raise no_usable_answers(dict.fromkeys(records.names, NOT_FINITE), cell=cell)
            figures = RoundFigures.of_sums(sums[lane], int(steps_F[lane]), int(refused_N.sum()))
            cost = 0 if records.next_round_is_free else figures.server_env_steps
            records.federated(records.budget.after_server_steps(cost), figures)

    def _query_batch(self) -> int:
        """Return the largest of all federated lanes."""
        records_F = self._records[: self._federated]
        return max((len(records.server_seeds()) for records in records_F), default=0)

    def _finish(self, lanes: Sequence[int]) -> None:
        cells = {lane: self._cells[lane] for lane in lanes}
        for lane in lanes:
            self._write_best(lane)
        left = [lane for lane in lanes if not self._directory.result(cells[lane]).exists()]
        if left:
            # All cells, so that a resumed run plays in batches of the same size.
            evaluate_best(self._settings, [*cells.values()], self._directory)
        for lane in left:
            for n in range(len(self._settings.agents)):
                self._export(lane, n, "last", self._grid.policy(lane, n))
            self._records[lane].finish(checkpoint_seconds=self._checkpoints.seconds_spent)

    def _checkpoint(self) -> None:
        for lane in range(len(self._cells)):
            self._write_best(lane)
        number = max(records.round for records in self._records)
        with self._checkpoints.write(number) as directory:
            self._grid.save(directory)
            content = {
                "cells": {str(records.cell): records.state() for records in self._records},
                "padded": self._grid.is_padded,
                "implementation": self._settings.environment.implementation,
                "checkpoint_seconds": self._checkpoints.seconds_spent,
            }
            (directory / "grid.json").write_text(json.dumps(content))

    def _write_best(self, lane: int) -> None:
        for key in [key for key in self._best if key[0] == lane]:
            self._export(*key, "best", self._best.pop(key))

    def _export(self, lane: int, agent: int, which: str, policy: Policy) -> None:
        name = self._settings.agent_names[agent]
        home = self._directory.agent(self._cells[lane], name)
        with whole_directory(home / which) as directory:
            export_policy(directory, *policy)


def _resolved(settings: ExperimentSettings, implementation: str | None) -> ExperimentSettings:
    """Return the settings with this implementation, or with the one that "auto" stands for."""
    environment = settings.environment
    chosen = implementation or resolved(
        environment.id, environment.options, environment.implementation
    )
    after = environment.model_copy(update={"implementation": chosen})
    return settings.model_copy(update={"environment": after})
