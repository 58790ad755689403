"""The compiled engine. Cells of our own DQN are lanes of one program; each part is a grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedhql.agents.kinds import compiled_kinds
from fedhql.engines.build_agent import compiled_config, compiled_environment
from fedhql.engines.device_errors import device_failures, gigabytes
from fedhql.engines.engine import DeviceFacts, Recording
from fedhql.engines.grid_plan import forget_unless_begun, plan_grids, replay_bytes
from fedhql.engines.jax_setup import prepare_jax
from fedhql.engines.work import Agents, Executor, Send, Work
from fedhql.environments.compiled import COMPILED_ENVIRONMENTS, GYMNASIUM, SETTING, twin_options
from fedhql.errors import (
    DeviceError,
    EnvironmentRefused,
    FedHQLError,
    MissingExtra,
    SettingsError,
)
from fedhql.plugins import is_plugin
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.run_directory import Cell, RunDirectory


@dataclass(frozen=True)
class CompiledEngine:
    """Runs experiments whose agents and environment can be compiled."""

    needs_facts: bool = True
    places_agents: bool = False

    def why_not(self, settings: ExperimentSettings) -> FedHQLError | None:
        for name, agent in zip(settings.agent_names, settings.agents, strict=True):
            if agent.kind not in compiled_kinds():
                kinds = " or ".join(map(repr, compiled_kinds()))
                return SettingsError(
                    f"the compiled engine runs agents of kind {kinds} only; {name} is "
                    f"{agent.kind!r}"
                )
        if settings.federation.secure_aggregation:
            return SettingsError(
                "the compiled engine has no secure aggregation; with federation.secure_aggregation "
                "the engine is messages"
            )
        environment = settings.environment
        if environment.implementation == GYMNASIUM:
            return SettingsError(
                "the compiled engine cannot step Gymnasium's environments; with "
                "environment.implementation = 'gymnasium' the engine is messages"
            )
        compiled = compiled_environment(environment)
        if compiled is None:
            options = f" with options {environment.options}" if environment.options else ""
            return SettingsError(
                f"the compiled engine has no {environment.id}{options}; it has "
                f"{', '.join(map(_with_options, COMPILED_ENVIRONMENTS))}, and your own with "
                "environment.implementation = 'package.module:factory'"
            )
        if compiled.extra is not None and not compiled.is_installed:
            return MissingExtra.named(compiled.extra, f"the compiled engine with {environment.id}")
        return None

    def usually_runs(self, settings: ExperimentSettings) -> bool:
        environment = settings.environment
        known = environment.id in COMPILED_ENVIRONMENTS or is_plugin(environment.implementation)
        known = known and environment.implementation != GYMNASIUM
        return known and all(agent.kind in compiled_kinds() for agent in settings.agents)

    def modules(self, settings: ExperimentSettings) -> list[str]:
        return ["fedhql.engines.grid_run"]

    def try_out(self, settings: ExperimentSettings, agents: Agents) -> DeviceFacts:
        from fedhql.agents.dqn.optimisers import optimisers_of
        from fedhql.engines.build import require_same_spaces
        from fedhql.engines.jax_setup import device_memory

        for agent in settings.agents:
            for optimiser in optimisers_of(compiled_config(agent)):
                optimiser.at(0.0, 0.0)  # raises for unknown keywords
        observation_size = require_same_spaces(settings)
        is_cpu, memory_bytes = device_memory()
        environment = compiled_environment(settings.environment)
        assert environment is not None  # else another engine runs the experiment
        if not is_cpu and environment.twin is None:
            raise EnvironmentRefused(
                f"{settings.environment.id} is stepped by {environment.package} on the CPU, which "
                "a program on a GPU cannot call; set JAX_PLATFORMS=cpu, or use our twin of it: "
                f"{SETTING}=twin"
            )
        return DeviceFacts(is_cpu, memory_bytes, observation_size)

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
        jobs, memories = executor.capacity(settings, on_cpu=facts.is_cpu)
        grids = plan_grids(settings, directory, left, jobs, memories, facts)
        return [
            Work(
                partial(_finish, settings, recording, facts, cells, home.name),
                cells,
                home.relative_to(directory.path).as_posix(),
                on_gpu=not facts.is_cpu,
                modules=self.modules(settings),
            )
            for cells, home in grids
        ]


def _with_options(env_id: str) -> str:
    names = twin_options(env_id)
    return f"{env_id} (with {', '.join(names)})" if names else f"{env_id} (without options)"


def _finish(
    settings: ExperimentSettings,
    recording: Recording,
    facts: DeviceFacts,
    cells: Sequence[Cell],
    home: str,
    directory: RunDirectory,
    send: Send,
) -> None:
    """Run a grid in a worker process. Only workers load JAX."""
    from fedhql.engines.grid_run import finish_grid

    def wanted() -> str:
        replay = gigabytes(len(cells) * replay_bytes(settings, facts))
        memory = gigabytes(facts.memory_bytes)
        return (
            f"{len(cells)} cells want {replay} for replay memories and some more, and the device "
            f"has {memory}; "
        )

    prepare_jax()
    grid = directory.grids() / home
    try:
        with device_failures(wanted):
            finish_grid(
                settings,
                cells,
                directory,
                grid,
                report=send,
                clock=recording.clock,
                track=recording.track,
            )
    except DeviceError:
        forget_unless_begun(grid)  # another plan may fit
        raise
