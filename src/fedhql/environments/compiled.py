"""The environments that a compiled program can step: built-in records and users' own twins.

A new built-in twin is one entry of `TWINS`, or of `COMPILED_ENVIRONMENTS` if it has files of its
own. A user's own twin is a function that returns a `Twin`; the settings name it as
`environment.implementation = "package.module:factory"`.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedhql.environments.lunar_lander.twin import lunar_lander
from fedhql.environments.twins import TWINS, Twin
from fedhql.errors import EnvironmentRefused
from fedhql.plugins import import_plugin, is_plugin

if TYPE_CHECKING:  # the command line lists environments without loading JAX
    from fedhql.environments.lanes import Lanes

AUTO, TWIN, GYMNASIUM, ENVPOOL = "auto", "twin", "gymnasium", "envpool"
IMPLEMENTATIONS = (AUTO, TWIN, GYMNASIUM, ENVPOOL)  # and users' own
SETTING = "environment.implementation"
GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@dataclass(frozen=True)
class CompiledEnvironment:
    """The record of one environment that compiled programs can step."""

    make_lanes: "Callable[[], Lanes]"  # loads JAX
    twin: Twin | None = None  # if there is one, the message engine uses it too
    extra: str | None = None  # the optional extra that installs `package`
    package: str = ""
    # More lanes than this on one core are slower (docs/performance.md).
    most_lanes_on_a_core: int = 8

    @property
    def is_installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None


def _of_twin(twin: Twin, most_lanes_on_a_core: int = 8) -> CompiledEnvironment:
    def make_lanes() -> "Lanes":
        from fedhql.environments.lanes import TwinLanes

        return TwinLanes(twin)

    return CompiledEnvironment(make_lanes, twin, most_lanes_on_a_core=most_lanes_on_a_core)


def _lunar_lander(**options: Any) -> CompiledEnvironment:
    for name, value in options.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, bool) != (name == "enable_wind") or not (is_number or value in (0, 1)):
            raise EnvironmentRefused(f"environment.options.{name} = {value!r} has a wrong type")
    if not -12 < options.get("gravity", -10) < 0:  # as Gymnasium demands
        raise EnvironmentRefused(
            f"environment.options.gravity = {options['gravity']}: allowed: between -12 and 0"
        )
    return _of_twin(lunar_lander(**options), most_lanes_on_a_core=128)


def twin_options(env_id: str) -> list[str]:
    """Return the names of the options that an environment's twin takes."""
    return list(inspect.signature(lunar_lander).parameters) if env_id == "LunarLander-v3" else []


def _envpool_lunar_lander() -> "Lanes":
    from fedhql.environments.envpool_lanes import EnvPoolLanes

    return EnvPoolLanes("LunarLander-v3")


COMPILED_ENVIRONMENTS: Mapping[str, CompiledEnvironment] = {
    **{env_id: _of_twin(twin) for env_id, twin in TWINS.items()},
    "LunarLander-v3": _lunar_lander(),
}
# Stepped by EnvPool on the host, with `environment.implementation = "envpool"`.
ENVPOOL_ENVIRONMENTS: Mapping[str, CompiledEnvironment] = {
    "LunarLander-v3": CompiledEnvironment(
        _envpool_lunar_lander, extra="envpool", package="envpool", most_lanes_on_a_core=32
    ),
}


def find_compiled(
    env_id: str, options: Mapping[str, Any] | None = None, implementation: str = AUTO
) -> CompiledEnvironment | None:
    """Return the record of an environment; None if only Gymnasium can step it.

    `implementation` is one of IMPLEMENTATIONS, or the "package.module:factory" of a user's own
    twin, which is called with the options. Of the built-in twins only LunarLander's takes options.
    Raise EnvironmentRefused if the environment has no such implementation.
    """
    if is_plugin(implementation):
        try:
            written = json.dumps(options or {}, sort_keys=True)
        except TypeError as error:
            raise EnvironmentRefused(f"environment.options with {SETTING}: {error}") from error
        return _users_own(implementation, written)
    if implementation == GYMNASIUM:
        return None
    require_implementation(env_id, options, implementation)
    found = _built_in(env_id, options)
    if implementation != AUTO:
        return found[implementation]
    # A costly twin takes minutes to compile on a CPU and is slower than EnvPool there.
    if ENVPOOL in found and not can_use_gpu():
        return found[ENVPOOL]
    return found.get(TWIN)


def require_implementation(
    env_id: str, options: Mapping[str, Any] | None, implementation: str
) -> None:
    """Raise EnvironmentRefused if the environment has no such built-in implementation."""
    if implementation in (AUTO, GYMNASIUM) or is_plugin(implementation):
        return
    found = _built_in(env_id, options)
    if implementation not in found:
        with_options = f" with environment.options {dict(options)}" if options else ""
        allowed = ", ".join(map(repr, (AUTO, *found, GYMNASIUM)))
        raise EnvironmentRefused(
            f"{SETTING} = {implementation!r}: {env_id}{with_options} has none; allowed: {allowed}, "
            "or your own as 'package.module:factory'"
        )


def _built_in(env_id: str, options: Mapping[str, Any] | None) -> dict[str, CompiledEnvironment]:
    """Return the records of an environment with these options, by implementation."""
    if options:
        takes = options.keys() <= set(twin_options(env_id))
        return {TWIN: _lunar_lander(**options)} if takes else {}
    by_name = {TWIN: COMPILED_ENVIRONMENTS, ENVPOOL: ENVPOOL_ENVIRONMENTS}
    return {name: records[env_id] for name, records in by_name.items() if env_id in records}


def resolved(env_id: str, options: Mapping[str, Any], implementation: str) -> str:
    """Return the implementation that "auto" stands for on this machine."""
    if implementation != AUTO:
        return implementation
    found = find_compiled(env_id, options)
    if found is None:
        return GYMNASIUM
    return ENVPOOL if found.twin is None else TWIN


def can_use_gpu() -> bool:
    """Return whether JAX can use a GPU, without loading JAX."""
    platforms = os.environ.get("JAX_PLATFORMS", "").split(",")
    allowed = {"", "cuda", "gpu"} & set(platforms)
    return bool(allowed) and any(find_spec(plugin) for plugin in GPU_PLUGINS)


def find_twin(
    env_id: str, options: Mapping[str, Any] | None = None, implementation: str = AUTO
) -> Twin | None:
    """Return the twin for agents, servers and evaluations outside of a compiled grid, if any.

    They step few lanes at a time. A costly twin is slower there than Gymnasium, so with "auto" they
    do not use it.
    """
    found = find_compiled(env_id, options, implementation)
    twin = None if found is None else found.twin
    return None if twin is not None and twin.is_costly and implementation == AUTO else twin


@cache  # agents share a compiled program only if their twin is the same object
def _users_own(path: str, options: str) -> CompiledEnvironment:
    factory, named = import_plugin(SETTING, path, EnvironmentRefused), json.loads(options)
    try:
        inspect.signature(factory).bind(**named)
    except (TypeError, ValueError) as error:  # it cannot be called, or not so
        raise EnvironmentRefused(
            f"{SETTING} = {path!r} is called with environment.options as keywords: {error}"
        ) from error
    twin = factory(**named)
    if not isinstance(twin, Twin):
        raise EnvironmentRefused(
            f"{SETTING} = {path!r} returns a {type(twin).__name__}; allowed: a "
            "function that returns a fedhql.environments.twins.Twin"
        )
    return _of_twin(twin)
