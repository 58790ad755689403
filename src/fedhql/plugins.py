"""Import what a user names in a settings file as "package.module:name"."""

import importlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from fedhql.errors import FedHQLError, SettingsError


def is_plugin(name: str) -> bool:
    """Return whether `name` has the form "package.module:name"."""
    module, _, attribute = name.partition(":")
    return bool(module and attribute)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question with the nearest known name and a space; empty if none is near."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def import_plugin(
    setting: str,
    path: str,
    error: type[FedHQLError] = SettingsError,
    fits: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the object that `path` names. Raise `error`, which names `setting`, if there is none.

    With `fits`, the error lists what of the module could be meant. An exception from inside the
    user's module is passed on unchanged, except for a syntax error or a failed import, where the
    file and the line say all.
    """
    module_name, _, attribute = path.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        raise error(f"{setting} = {path!r} names a file; write the module: {dotted}:{attribute}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as missing:
        is_missing = isinstance(missing, ModuleNotFoundError) and missing.name is not None
        if is_missing and f"{module_name}.".startswith(f"{missing.name}."):
            where = f"in {Path.cwd()} or on the Python path"
            raise error(f"{setting} = {path!r}: no module {module_name!r} {where}") from missing
        raise error(f"{setting} = {path!r}: {_line_of(missing)}: {missing}") from missing
    except SyntaxError as wrong:
        line = (wrong.text or "").strip()
        raise error(
            f"{setting} = {path!r}: {wrong.filename}, line {wrong.lineno}: {wrong.msg}: {line}"
        ) from wrong
    try:
        return getattr(module, attribute)
    except AttributeError as missing:
        hint = ""
        if fits is not None:
            there = _names_in(module, fits)
            hint = f"; {did_you_mean(attribute, there)}it has "
            hint += ", ".join(there) or "nothing that fits"
        raise error(f"{setting} = {path!r}: {module_name} has no {attribute!r}{hint}") from missing


def _line_of(error: ImportError) -> str:
    """Return the file and the line of the import statement that failed."""
    frames = extract_tb(error.__traceback__)
    file = [frame for frame in frames if not frame.filename.startswith("<frozen")][-1]
    return f"{file.filename}, line {file.lineno}"


def _names_in(module: ModuleType, fits: Callable[[Any], bool]) -> list[str]:
    """Return the public names of what fits and was defined in the module's own package."""
    package = module.__name__.partition(".")[0]
    return [
        name
        for name, each in vars(module).items()
        if not name.startswith("_")
        and str(getattr(each, "__module__", "")).partition(".")[0] == package
        and fits(each)
    ]
