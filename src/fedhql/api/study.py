"""Run federations from Python. `fedhql run` is `study` with a table at the end."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhql.api.given_agents import AgentsLike, GivenAgents, given_agents, plain
from fedhql.api.result import Result
from fedhql.api.run_study import RunOptions, run_study
from fedhql.engines.cell_records import Progress
from fedhql.engines.choice import AUTO
from fedhql.errors import SettingsError
from fedhql.running.executors import LOCAL
from fedhql.running.run import Display
from fedhql.settings.arms import attacked_arms
from fedhql.settings.experiment import read_settings, read_settings_file, with_backbone
from fedhql.settings.overrides import Overrides, as_mapping
from fedhql.settings.presets import preset_text
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import FEDHQL

ShowProgress = bool | Callable[[Progress], object] | Display


def federate(
    agents: AgentsLike,
    env: str | None = None,
    budget: int | None = None,
    *,
    seed: int = 0,
    experiment: str | Path | None = None,
    settings: Overrides = (),
    engine: str = AUTO,
    jobs: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    track: str | Sequence[str] = (),
    progress: ShowProgress = True,
) -> Result:
    """Federate agents once, until each has consumed its budget; return how well they do.

    Agents are a list, or a dict by name. Live objects are federated as they are, in this process,
    and have learned when the call returns. See `study` for everything else.
    """
    if (index := _index(seed)) < 0:
        raise SettingsError(f"seed = {seed!r}: allowed: a whole number >= 0")
    given = given_agents(agents)
    return run_study(
        _settings(given, env, budget, experiment, settings),
        given,
        arms=[FEDHQL],
        seeds=[index],
        options=RunOptions(engine=engine, jobs=jobs, resume=resume, track=_tools(track)),
        out=out,
        progress=progress,
    )


def study(
    agents: AgentsLike | None = None,
    env: str | None = None,
    budget: int | None = None,
    *,
    experiment: str | Path | None = None,
    settings: Overrides = (),
    backbone: str | None = None,
    arms: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    attack: str | None = None,
    attackers: int | None = None,
    engine: str = AUTO,
    on: str = LOCAL,
    address: str | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    figures: bool = False,
    track: str | Sequence[str] = (),
    progress: ShowProgress = True,
) -> Result:
    """Run agents alone and federated, with several seeds; return all their evaluations.

    Args:
        agents: A list, or a dict by name, of kinds ("dqn"), classes, functions that take `seed` and
            return an agent, or dicts such as {"kind": MyAgent, "learning_rate": 0.1}.
        env: A Gymnasium id.
        budget: Env steps of each agent, its share of the server's included.
        experiment: A preset's name or the path of a TOML file, for what is not given here.
        settings: What an experiment file can say, as {"federation.exploration": 3}.
        backbone: "dqn" or "sb3", the DQN to use for every DQN agent.
        arms: "independent" (each agent alone), "fedhql", and variants such as "exploration=3"; the
            first two by default.
        seeds: A number of seeds or a list; 0 by default.
        attack: Also run federated arms in which agents lie in this way.
        attackers: How many of the last agents lie.
        engine: "auto", "messages" or "compiled".
        on: "local" or "ray".
        address: The address of the Ray cluster.
        jobs: Processes on this machine, by default one for each core; 0 runs in this process.
        out: The run's directory; without it, the run is removed together with the result.
        resume: Continue the run in `out`, or start it.
        figures: Also draw figures in `out`.
        track: Also write scalars to "tensorboard", "mlflow" or "wandb", or to several.
        progress: True, False, or a function that is called with each Progress.

    Raise FedHQLError, whose message says what is allowed, for what cannot be run.
    """
    given = None if agents is None else given_agents(agents)
    if given and given.live:
        n, agent = next(iter(given.live.items()))
        name = type(agent).__qualname__
        raise SettingsError(
            f"agents.{n + 1}: a live {name} can learn only once, and a study builds agents for "
            f"every arm and seed; give the class, or a function that takes seed and returns an "
            "agent. fedhql.federate takes live agents"
        )
    if isinstance(arms, str) or (arms is not None and len(arms) == 0):
        raise SettingsError(f"arms = {arms!r}: allowed: a list such as [{arms or FEDHQL!r}]")
    chosen = _settings(given, env, budget, experiment, settings)
    return run_study(
        chosen if backbone is None else with_backbone(chosen, backbone),
        given or GivenAgents(),
        arms=arms,
        more_arms=attacked_arms([FEDHQL] if arms is None else arms, attack, attackers),
        seeds=None if seeds is None else _seeds(seeds),
        options=RunOptions(
            engine, on, address, jobs, resume=resume, figures=figures, track=_tools(track)
        ),
        out=out,
        progress=progress,
    )


def _settings(
    given: GivenAgents | None,
    env: str | None,
    budget: int | None,
    experiment: str | Path | None,
    settings: Overrides,
) -> ExperimentSettings:
    """Return the experiment, with what is given on top of the preset or file."""
    if env is not None and not isinstance(env, str):
        raise SettingsError(
            f"env = {env!r}: allowed: a Gymnasium id such as 'CartPole-v1', because the server and "
            "evaluations make copies of their own; gymnasium.register gives your own environment "
            "an id, 'package.module:Id-v0' imports the module that does"
        )
    if isinstance(settings, str):
        raise SettingsError(f"settings = {settings!r}: allowed: a dict, or a list of KEY=VALUE")
    overrides = {key: plain(key, value) for key, value in as_mapping(settings).items()}
    if given is not None:
        if "agents" in overrides:
            raise SettingsError("agents: given twice; allowed: agents or settings['agents']")
        overrides = {"agents": given.tables, **overrides}  # first: others may change their options
    overrides |= {} if env is None else {"environment.id": env}
    overrides |= {} if budget is None else {"budget.env_steps_per_agent": budget}
    if experiment is None:
        _require_whole(overrides)
        return read_settings("", overrides)
    if str(experiment).endswith(".toml"):
        return read_settings_file(Path(experiment), overrides)
    return read_settings(preset_text(str(experiment)), overrides)


def _require_whole(overrides: Mapping[str, object]) -> None:
    """Raise SettingsError if the arguments that no default stands for are missing."""
    given = {key.partition(".")[0] for key in overrides}
    arguments = {"agents": "agents", "env": "environment", "budget": "budget"}
    if missing := [name for name, section in arguments.items() if section not in given]:
        raise SettingsError(
            f"{' and '.join(missing)}: missing; give them, or an experiment that says them, such "
            "as experiment='cartpole-n5'"
        )


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        wanted = [_index(seed) for seed in seeds]
    else:
        wanted = list(range(_index(seeds)))
    if not wanted or min(wanted) < 0:
        raise SettingsError(f"seeds = {seeds!r}: allowed: a number > 0, or a list of seeds >= 0")
    return wanted


def _tools(track: str | Sequence[str]) -> Sequence[str]:
    return [track] if isinstance(track, str) else track


def _index(seed: Any) -> int:
    """Return a whole number of any type; -1 for anything else."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        return -1
    return operator.index(seed)
