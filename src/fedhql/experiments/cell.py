"""One arm with one seed, from first step to last: learn, evaluate, federate, checkpoint."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.contract import Checkpointable, Diagnosable, Exportable
from fedhql.environments import EnvironmentBatch
from fedhql.experiments.build import Stream, build_agents, build_cohort, build_server, seeds_for
from fedhql.experiments.checkpoints import Checkpoints
from fedhql.experiments.evaluation import evaluate
from fedhql.experiments.settings import ExperimentSettings
from fedhql.federation import Budget, FederationServer
from fedhql.results.files import locked, whole_directory, write_atomically
from fedhql.results.records import EvaluationRow, FederationRow, RecordFile
from fedhql.results.run_directory import Cell, RunDirectory
from fedhql.results.tensorboard import TensorBoard


@dataclass(frozen=True)
class Progress:
    """How far a cell is, for whoever watches."""

    cell: Cell
    consumed_env_steps: float  # per agent
    mean_return: float | None  # of the last evaluation, over agents


def finish_cell(
    settings: ExperimentSettings,
    cell: Cell,
    directory: RunDirectory,
    *,
    report: Callable[[Progress], None],
    clock: Callable[[], float],
    tensorboard: bool,
) -> None:
    """Run a cell, from its last checkpoint if it has one, until its budget is spent."""
    # A worker that outlived its killed parent by a moment may hold the lock, and even finish.
    with locked(directory.cell(cell), wait=True):
        if directory.result(cell).exists():
            return
        with closing(_CellRun(settings, cell, directory, report, clock, tensorboard)) as run:
            run.until_budget_is_spent()


class _CellRun:
    def __init__(
        self,
        settings: ExperimentSettings,
        cell: Cell,
        directory: RunDirectory,
        report: Callable[[Progress], None],
        clock: Callable[[], float],
        tensorboard: bool,
    ) -> None:
        self._settings, self._cell, self._directory = settings, cell, directory
        self._report, self._clock = report, clock
        self._agents = build_agents(settings, cell.seed)
        self._cohort = build_cohort(settings, self._agents, self._on_self_learned)
        make_batch = partial(
            EnvironmentBatch, settings.environment.id, options=settings.environment.options
        )
        self._evaluation_environments = make_batch(
            size=len(self._agents) * settings.evaluation.episodes
        )
        self._server: FederationServer | None = None
        if cell.arm == "fedhql":
            self._server_environments = make_batch(size=settings.federation.query_batch)
            self._server = build_server(settings, self._cohort, self._server_environments)
        self._checkpoints = Checkpoints(directory.checkpoints(cell), clock)
        self._board = TensorBoard(directory.tensorboard(cell) if tensorboard else None)
        # From here on, what a checkpoint holds besides the agents:
        self._round = 0
        self._budget = Budget(settings.budget.env_steps_per_agent, len(self._agents))
        self._best = [-np.inf] * len(self._agents)
        self._wall_seconds_before = 0.0
        # ... and what it need not:
        self._began = clock()
        self._learned_in_phase = 0
        self._mean_return: float | None = None
        self._restore()

    def _restore(self) -> None:
        """Go back to the last checkpoint, or to the start; open the records at that point."""
        checkpoint = self._checkpoints.latest()
        state: dict[str, Any] | None = None
        if checkpoint is not None:
            state = json.loads((checkpoint / "cell.json").read_text())
            self._round = state["round"]
            self._budget = Budget(**state["budget"])
            self._best = list(state["best"].values())
            self._wall_seconds_before = state["wall_seconds"]
            self._checkpoints.seconds_spent = state["checkpoint_seconds"]
            if self._server is not None:
                self._server.refused = Counter(state["refused_answers"])
            for agent, name in zip(self._agents, self._cohort.names, strict=True):
                assert isinstance(agent, Checkpointable)  # else no checkpoint was written
                agent.restore(checkpoint / name)
        lengths = state["record_lengths"] if state else (None, None)
        home = self._directory.cell(self._cell)
        self._evaluations = RecordFile(home / "evaluations.csv", EvaluationRow, length=lengths[0])
        self._federation = RecordFile(home / "federation.csv", FederationRow, length=lengths[1])

    def until_budget_is_spent(self) -> None:
        if self._round == 0:
            self._checkpoint()
        wanted = self._settings.federation.self_learning_env_steps
        while env_steps := self._budget.affordable_self_learning(wanted):
            self._self_learn(env_steps)
            self._evaluate()
            if self._server is not None:
                self._federate(self._server)
            self._round += 1
            if self._checkpoints.due():
                self._checkpoint()
        whole_budget = float(self._settings.budget.env_steps_per_agent)  # but for a last fraction
        self._report(Progress(self._cell, whole_budget, self._mean_return))
        self._keep("last", range(len(self._agents)))
        result = {key: value for key, value in self._state().items() if key != "record_lengths"}
        write_atomically(self._directory.result(self._cell), json.dumps(result, indent=2) + "\n")
        self._checkpoints.discard()

    def close(self) -> None:
        self._cohort.close()
        self._evaluation_environments.close()
        if self._server is not None:
            self._server_environments.close()
            # Beside the rows, because a cell that stops with an error has no result.
            refused = json.dumps(self._server.refused)
            write_atomically(self._directory.refused_answers(self._cell), refused + "\n")
        self._board.close()
        self._evaluations.close()
        self._federation.close()

    def _self_learn(self, env_steps: int) -> None:
        self._cohort.self_learn(env_steps)
        self._learned_in_phase = 0
        self._budget = self._budget.after_self_learning(env_steps)

    def _on_self_learned(self, env_steps: int) -> None:
        """One agent has; the budget is charged once all have."""
        self._learned_in_phase += env_steps
        self._tell()

    def _evaluate(self) -> None:
        seed, episodes = self._cell.seed, self._settings.evaluation.episodes
        seeds_NE = [
            seeds_for(seed, Stream.EVALUATION, n, self._round, count=episodes)
            for n in range(len(self._agents))
        ]
        returns_NE, lengths_NE = evaluate(
            self._cohort,
            self._evaluation_environments,
            np.stack(seeds_NE),
            self._settings.evaluation.episode_step_limit,
        )
        means = [float(mean) for mean in returns_NE.mean(axis=1)]
        improved = [n for n, mean in enumerate(means) if mean > self._best[n]]
        self._keep("best", improved)
        self._best = [max(pair) for pair in zip(self._best, means, strict=True)]
        self._mean_return = float(np.mean(means))
        self._evaluations.append(
            EvaluationRow(
                arm=self._cell.arm,
                seed=seed,
                agent=name,
                own_env_steps=self._budget.own_env_steps,
                budget_env_steps=self._budget.consumed_per_agent,
                mean_return=means[n],
                best_mean_return=self._best[n],
            )
            for n, name in enumerate(self._cohort.names)
        )
        for n, (agent, name) in enumerate(zip(self._agents, self._cohort.names, strict=True)):
            figures = agent.diagnostics() if isinstance(agent, Diagnosable) else {}
            figures |= {
                "eval/mean_reward": means[n],
                "eval/mean_ep_length": float(lengths_NE[n].mean()),
            }
            figures["time/budget_env_steps"] = self._budget.consumed_per_agent
            self._board.write(name, figures, self._budget.own_env_steps)
        self._tell()

    def _federate(self, server: FederationServer) -> None:
        seeds = seeds_for(
            self._cell.seed,
            Stream.SERVER,
            self._round,
            count=self._settings.federation.query_batch,
        )
        if len(seeds) > self._budget.remaining_env_steps:
            return  # what is left does not pay for the round's first step
        self._budget, figures = server.federate(self._budget, seeds.tolist())
        row = FederationRow(
            arm=self._cell.arm,
            seed=self._cell.seed,
            round=self._round,
            own_env_steps=self._budget.own_env_steps,
            server_env_steps=self._budget.server_env_steps,
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
        self._tell()

    def _tell(self) -> None:
        learning = self._learned_in_phase / len(self._agents)
        consumed = self._budget.consumed_per_agent + learning
        self._report(Progress(self._cell, consumed, self._mean_return))

    def _checkpoint(self) -> None:
        """Whole or not at all. A cell with an agent that cannot be saved resumes from its start."""
        if not all(isinstance(agent, Checkpointable) for agent in self._agents):
            return
        with self._checkpoints.write(self._round) as directory:
            for agent, name in zip(self._agents, self._cohort.names, strict=True):
                assert isinstance(agent, Checkpointable)  # so mypy knows, too
                _in_new_directory(directory / name, agent.save)
            (directory / "cell.json").write_text(json.dumps(self._state()))

    def _state(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "budget": vars(self._budget),
            "best": dict(zip(self._cohort.names, self._best, strict=True)),
            "refused_answers": dict(self._server.refused) if self._server else {},
            "wall_seconds": self._wall_seconds_before + self._clock() - self._began,
            "checkpoint_seconds": self._checkpoints.seconds_spent,
            "record_lengths": [self._evaluations.length(), self._federation.length()],
        }

    def _keep(self, which: str, agents: Iterable[int]) -> None:
        """Export those agents, or save them whole if they know nothing smaller."""
        for n in agents:
            agent, home = self._agents[n], self._directory.agent(self._cell, self._cohort.names[n])
            if isinstance(agent, Exportable):
                with whole_directory(home / which) as directory:
                    agent.export(directory)
            elif isinstance(agent, Checkpointable):
                with whole_directory(home / which) as directory:
                    agent.save(directory)


def _in_new_directory(directory: Path, save: Callable[[Path], None]) -> None:
    directory.mkdir()
    save(directory)
