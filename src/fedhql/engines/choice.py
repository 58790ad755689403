"""Which engine runs an experiment: messages between objects, or one compiled program."""

import logging
from importlib.util import find_spec
from typing import Literal

from fedhql.errors import MissingExtra, SettingsError
from fedhql.settings.sections import ExperimentSettings

log = logging.getLogger(__name__)

Engine = Literal["messages", "compiled"]
ENGINES = ("auto", "messages", "compiled")
RAY = "ray"  # where, not how: `run` sends messages to agents there, `suite` sends its parts there
TWIN_IDS = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1")
ENVPOOL_IDS = ("LunarLander-v3",)


def choose_engine(settings: ExperimentSettings, wanted: str) -> Engine:
    """As wanted; `auto` is compiled whenever that is possible."""
    if wanted not in ENGINES:
        raise SettingsError(f"--engine {wanted}: allowed: {', '.join((*ENGINES, RAY))}")
    secure = settings.federation.secure_aggregation
    if secure and find_spec("cryptography") is None:
        raise MissingExtra.named("remote", "federation.secure_aggregation")
    if wanted == "messages":
        return "messages"
    why_not = _why_not_compiled(settings)
    if wanted == "compiled" and why_not is not None:
        raise why_not
    if why_not and _expects_compiled(settings):
        log.warning("%s; so --engine messages runs it, more slowly", why_not)
    return "messages" if why_not else "compiled"


def _expects_compiled(settings: ExperimentSettings) -> bool:
    """Agents and environment are such as it usually runs."""
    known = settings.environment.id in (*TWIN_IDS, *ENVPOOL_IDS)
    return known and all(agent.kind == "dqn" for agent in settings.agents)


def _why_not_compiled(settings: ExperimentSettings) -> SettingsError | MissingExtra | None:
    for name, agent in zip(settings.agent_names, settings.agents, strict=True):
        if agent.kind != "dqn":
            return SettingsError(
                f"--engine compiled runs agents of kind 'dqn' only; {name} is {agent.kind!r}"
            )
    if settings.federation.secure_aggregation:
        return SettingsError(
            "--engine compiled has no secure aggregation; with federation.secure_aggregation the "
            "engine is messages"
        )
    environment = settings.environment
    if environment.id not in (*TWIN_IDS, *ENVPOOL_IDS) or environment.options:
        options = f" with options {environment.options}" if environment.options else ""
        return SettingsError(
            f"--engine compiled has no {environment.id}{options}; it has "
            f"{', '.join((*TWIN_IDS, *ENVPOOL_IDS))}, without options"
        )
    if environment.id in ENVPOOL_IDS and find_spec("envpool") is None:
        return MissingExtra.named("envpool", f"--engine compiled with {environment.id}")
    return None
