"""The command that says what is installed here, and what would run where."""

import os
import platform
from collections.abc import Iterator
from importlib import metadata

import typer
from packaging.requirements import Requirement

from fedhql import __version__
from fedhql.engines.choice import ENGINES
from fedhql.engines.jax_setup import compile_cache, prepare_jax
from fedhql.running.executors import cores
from fedhql.running.suite import PAPER
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text

FOR_DEVELOPERS = ("all", "check", "docs", "test")


def doctor() -> None:
    """Say what is installed, what would run the paper's experiments, and what is missing."""
    for name, found in (*_machine(), *_extras(), *_experiments()):
        typer.echo(f"{name:16} {found}")


def _machine() -> Iterator[tuple[str, str]]:
    yield "fedhql", f"{__version__}, Python {platform.python_version()}, {platform.machine()}"
    yield "cores", f"{cores()} of {os.cpu_count()}"
    prepare_jax()
    import jax

    kinds = [f"{device.device_kind} ({device.platform})" for device in jax.devices()]
    yield "JAX", f"{jax.__version__} on {', '.join(kinds)}"
    files = [path for path in compile_cache().rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    yield "compile cache", f"{compile_cache()}: {len(files)} files, {size:.0f} MB"


def _extras() -> Iterator[tuple[str, str]]:
    try:
        told = metadata.metadata("fedhql")
    except metadata.PackageNotFoundError:
        yield "extras", "unknown, because fedhql is not installed: pip install -e ."
        return
    for extra in sorted({*(told.get_all("Provides-Extra") or [])} - {*FOR_DEVELOPERS}):
        missing = [each.name for each in _needs("fedhql", extra) if not _is_installed(each)]
        hint = f"missing: {', '.join(missing)}; pip install 'fedhql[{extra}]'"
        yield f"[{extra}]", hint if missing else "installed"


def _needs(package: str, extra: str) -> Iterator[Requirement]:
    """Yield what an extra of a package needs here, and what the extras that it names need."""
    try:
        requirements = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return
    for each in map(Requirement, requirements):
        if each.marker and each.marker.evaluate({"extra": extra}):
            if each.name != package:
                yield each
            for other in sorted(each.extras):
                yield from _needs(each.name, other)


def _is_installed(requirement: Requirement) -> bool:
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(found, prereleases=True)


def _experiments() -> Iterator[tuple[str, str]]:
    """Yield the engine that runs each preset, and why the ones before it cannot."""
    for name in PAPER:
        settings = read_settings(preset_text(name))
        reasons: list[str] = []
        for engine, of in ENGINES.items():
            if (why_not := of.why_not(settings)) is None:
                reasons.insert(0, f"--engine {engine}")
                break
            reasons.append(str(why_not))
        yield name, "; ".join(reasons)
