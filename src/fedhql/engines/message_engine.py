"""The message engine. Agents of any kind are objects that the server calls; a part is a cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from fedhql.agents.kinds import find_kind
from fedhql.engines.device_errors import device_failures
from fedhql.engines.engine import DeviceFacts, Recording
from fedhql.engines.jax_setup import prepare_jax
from fedhql.engines.work import Agents, Executor, Send, Work
from fedhql.errors import FedHQLError, MissingExtra
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory


@dataclass(frozen=True)
class MessageEngine:
    """Runs every experiment, one cell after the other in each process."""

    needs_facts: bool = False
    places_agents: bool = True

    def why_not(self, settings: ExperimentSettings) -> FedHQLError | None:
        if settings.federation.secure_aggregation and find_spec("cryptography") is None:
            return MissingExtra.named("remote", "federation.secure_aggregation")
        return None

    def usually_runs(self, settings: ExperimentSettings) -> bool:
        return True

    def modules(self, settings: ExperimentSettings) -> list[str]:
        kinds = (find_kind(agent.kind) for agent in settings.agents)
        return [
            "fedhql.engines.cell_run",
            *(
                module
                for kind in kinds
                if kind is not None
                for module in (kind.module, *kind.loads)
            ),
        ]

    def try_out(self, settings: ExperimentSettings, agents: Agents) -> DeviceFacts:
        with agents() as source:
            source.gather(settings, 0, lambda env_steps: None).close()
        return DeviceFacts()

    def plan(
        self,
        settings: ExperimentSettings,
        directory: RunDirectory,
        left: Sequence[Cell],
        executor: Executor,
        *,
        facts: DeviceFacts,
        recording: Recording,
    ) -> list[Work]:
        return [
            Work(
                partial(_finish, settings, recording, executor.agents, cell),
                [cell],
                directory.checkpoints(cell).relative_to(directory.path).as_posix(),
                modules=self.modules(settings),
            )
            for cell in left
        ]


def _finish(
    settings: ExperimentSettings,
    recording: Recording,
    agents: Agents,
    cell: Cell,
    directory: RunDirectory,
    send: Send,
) -> None:
    """Run a cell in a worker process. Only workers load frameworks."""
    from fedhql.engines.cell_run import finish_cell

    prepare_jax(shares_device=True)
    try:
        with device_failures(), agents() as source:
            finish_cell(
                settings,
                cell,
                directory,
                report=send,
                clock=recording.clock,
                track=recording.track,
                gather=source.gather,
                build=source.build,
            )
    except Exception as error:
        error.add_note(f"in {cell}")
        raise
