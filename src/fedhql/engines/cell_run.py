"""Run one cell in the message engine: learn, evaluate, federate, write checkpoints."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing

from fedhql.engines.attacked_cohort import under_attack
from fedhql.engines.best_states import evaluate_best
from fedhql.engines.build import as_asked, build_batch, build_server, gather_here
from fedhql.engines.build_agent import build_one_agent
from fedhql.engines.cell_records import CellRecords, Progress
from fedhql.engines.evaluation import evaluate
from fedhql.engines.owned_cohort import Build, Gather
from fedhql.errors import AgentsLost
from fedhql.federation import FederationServer, rule_named
from fedhql.federation.attacks import attack_number
from fedhql.federation.consensus import Centre, consensus
from fedhql.settings.arms import federates, settings_of_arm
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.checkpoints import Checkpoints, latest_checkpoint
from fedhql.storage.files import locked, whole_directory
from fedhql.storage.records import ROUND, SELF_LEARNING
from fedhql.storage.run_directory import Cell, RunDirectory
from fedhql.storage.tracking import Tracking

log = logging.getLogger(__name__)

REPLAY = "server_replay.npy"  # in a checkpoint
MOST_LOSSES = 3  # losses of agents without a checkpoint in between


def finish_cell(
    settings: ExperimentSettings,
    cell: Cell,
    directory: RunDirectory,
    *,
    report: Callable[[Progress], None],
    clock: Callable[[], float],
    track: Sequence[str],
    gather: Gather = gather_here,
    build: Build = build_one_agent,
) -> None:
    """Run a cell, from its last checkpoint if it has one, until its budget is spent.

    If agents are lost, build all agents again from the last checkpoint. Raise AgentsLost when that
    has happened MOST_LOSSES times without a new checkpoint.
    """
    # A worker may outlive its killed parent briefly, hold the lock and even finish the cell.
    with locked(directory.cell(cell), wait=True):
        losses, lost_at, tracking = 0, None, Tracking(track)
        while not directory.result(cell).exists():
            try:
                with ExitStack() as opened:
                    run = _CellRun(
                        settings, cell, directory, report, clock, tracking, gather, opened
                    )
                    run.until_budget_is_spent(build)
            except AgentsLost as error:
                latest = latest_checkpoint(directory.checkpoints(cell))
                losses, lost_at = losses + 1 if latest == lost_at else 1, latest
                if losses == MOST_LOSSES:
                    raise
                start = f"continues from {latest.name}" if latest else "starts again"
                log.warning("%s: %s; the cell %s with new agents", cell, error, start)


class _CellRun:
    def __init__(
        self,
        settings: ExperimentSettings,
        cell: Cell,
        directory: RunDirectory,
        report: Callable[[Progress], None],
        clock: Callable[[], float],
        tracking: Tracking,
        gather: Gather,
        opened: ExitStack,
    ) -> None:
        """Begin, or continue from the last checkpoint. `opened` closes what this opens."""
        self._settings, self._cell, self._directory = settings, cell, directory
        self._checkpoints = Checkpoints(directory.checkpoints(cell), clock)
        checkpoint, state = self._checkpoints.latest(), None
        of_arm = settings_of_arm(settings, cell.arm)
        self._owned = gather(of_arm, cell.seed, self._on_self_learned)
        opened.enter_context(closing(self._owned))
        if checkpoint is not None:
            state = json.loads((checkpoint / "cell.json").read_text())
            self._checkpoints.seconds_spent = state["checkpoint_seconds"]
            self._owned.restore(checkpoint)
        policies = len(settings.agents) + federates(cell.arm)  # the consensus policy is the last
        self._evaluation_environments = build_batch(
            settings, policies * settings.evaluation.episodes
        )
        opened.enter_context(closing(self._evaluation_environments))
        self._centre: Centre | None = None
        self._cohort = under_attack(self._owned, of_arm.attack)
        self._server: FederationServer | None = None
        if federates(cell.arm):
            self._carries_over = of_arm.federation.carry_over
            self._server_environments = build_batch(of_arm, of_arm.federation.query_batch)
            opened.enter_context(closing(self._server_environments))
            asked = as_asked(self._cohort, of_arm.federation)
            self._server = build_server(of_arm, asked, self._server_environments, str(cell))
            attack = attack_number(of_arm.attack.name), of_arm.attack.attackers
            federation = of_arm.federation
            rule = rule_named(federation.rule, federation.model_dump())
            self._centre = consensus(rule, *attack)
        self._records = CellRecords(
            settings,
            cell,
            directory,
            report=report,
            clock=clock,
            tracking=tracking,
            state=state,
        )
        opened.enter_context(closing(self._records))
        if self._server is not None:
            self._server.refused = self._records.refused
            if state is not None and "server_environments" in state:
                self._server_environments.go_to(state["server_environments"])
            if checkpoint is not None and self._server.replay is not None:
                self._server.replay.restore(checkpoint / REPLAY)
            if state is not None:
                self._server.earnings = state.get("earnings", {})
        self._learned_in_phase = 0

    def until_budget_is_spent(self, build: Build) -> None:
        records = self._records
        if records.round == 0:
            self._checkpoint()
        while env_steps := records.affordable_self_learning():
            self._cohort.self_learn(env_steps)
            self._learned_in_phase = 0
            records.self_learned(env_steps)
            self._evaluate(SELF_LEARNING)
            if self._server is not None:
                self._federate(self._server)
            self._evaluate(ROUND)
            records.round += 1
            if self._checkpoints.due():
                self._checkpoint()
        for moment in (SELF_LEARNING, ROUND):
            self._evaluate(moment, at_the_end=True)
        self._keep("last", range(len(self._settings.agents)))
        evaluate_best(self._settings, [self._cell], self._directory, build)
        records.finish(checkpoint_seconds=self._checkpoints.seconds_spent)
        self._checkpoints.discard()

    def _on_self_learned(self, env_steps: int) -> None:
        """Report that one agent has learned. The budget is charged once all agents have."""
        self._learned_in_phase += env_steps
        self._records.tell(self._learned_in_phase / len(self._settings.agents))

    def _evaluate(self, moment: str, *, at_the_end: bool = False) -> None:
        for _ in range(self._records.due(moment, at_the_end=at_the_end)):
            played = evaluate(
                self._owned.act_each,
                self._evaluation_environments,
                self._records.evaluation_seeds(moment),
                discount=self._settings.environment.discount,
                episode_step_limit=self._settings.evaluation.episode_step_limit,
                centre=self._centre,
            )
            improved = self._records.evaluated(moment, played, self._owned.diagnostics())
            self._keep("best", improved)

    def _federate(self, server: FederationServer) -> None:
        seeds, budget = self._records.server_seeds(), self._records.budget
        if len(seeds) <= budget.remaining_env_steps:  # else it does not cover the first step
            self._records.federated(*server.federate(budget, seeds.tolist()))

    def _checkpoint(self) -> None:
        """Write a checkpoint. A cell with an agent that cannot be saved has no checkpoint."""
        if not self._owned.can_be_saved:
            return
        with self._checkpoints.write(self._records.round) as directory:
            self._owned.save(directory)
            state = self._records.state()
            state["checkpoint_seconds"] = self._checkpoints.seconds_spent
            if self._server is not None and self._carries_over:
                state["server_environments"] = self._server_environments.position()
            if self._server is not None:
                state["earnings"] = self._server.earnings
            if self._server is not None and self._server.replay is not None:
                self._server.replay.save(directory / REPLAY)
            (directory / "cell.json").write_text(json.dumps(state))

    def _keep(self, which: str, agents: Iterable[int]) -> None:
        """Export these agents. Save an agent whole if it has no export."""
        for n in agents:
            home = self._directory.agent(self._cell, self._owned.names[n])
            if self._owned.can_be_kept(n):
                with whole_directory(home / which) as directory:
                    self._owned.keep(n, directory)
