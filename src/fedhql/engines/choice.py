"""The engines by name, and the choice of the engine that runs an experiment."""

import logging
from collections.abc import Mapping

from fedhql.engines.compiled_engine import CompiledEngine
from fedhql.engines.engine import Engine
from fedhql.engines.message_engine import MessageEngine
from fedhql.environments.compiled import require_implementation
from fedhql.errors import FedHQLError, SettingsError
from fedhql.settings.sections import ExperimentSettings

log = logging.getLogger(__name__)

AUTO = "auto"
# In the order in which `auto` tries them.
ENGINES: Mapping[str, Engine] = {"compiled": CompiledEngine(), "messages": MessageEngine()}


def engine_named(name: str) -> Engine:
    if name not in ENGINES:
        raise SettingsError(f"engine = {name!r}: allowed: {', '.join((AUTO, *ENGINES))}")
    return ENGINES[name]


def choose_engine(settings: ExperimentSettings, wanted: str) -> str:
    """Return the name of the engine that runs an experiment; for `auto`, the first that can.

    Raise the reason if the wanted engine cannot run it, or if no engine can.
    """
    environment = settings.environment
    require_implementation(environment.id, environment.options, environment.implementation)
    names = list(ENGINES) if wanted == AUTO else [wanted]
    reasons: list[FedHQLError] = []
    for name in names:
        if (why_not := engine_named(name).why_not(settings)) is None:
            for engine, reason in zip(names, reasons, strict=False):
                if ENGINES[engine].usually_runs(settings):
                    log.warning("%s; so the engine %s runs it, more slowly", reason, name)
            return name
        reasons.append(why_not)
    raise reasons[-1]


def engine_that_places_agents() -> str:
    """Return the name of the engine whose agents may be actors on a cluster."""
    return next(name for name, engine in ENGINES.items() if engine.places_agents)
