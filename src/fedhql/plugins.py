"""Import what a user names in a settings file as "package.module:name"."""

import importlib
from pathlib import Path
from typing import Any

from fedhql.errors import FedHQLError, SettingsError


def is_plugin(name: str) -> bool:
    """Return whether `name` has the form "package.module:name"."""
    module, _, attribute = name.partition(":")
    return bool(module and attribute)


def import_plugin(setting: str, path: str, error: type[FedHQLError] = SettingsError) -> Any:
    """Return the object that `path` names. Raise `error`, which names `setting`, if there is none.

    An exception from inside the user's module is passed on unchanged, except for a syntax error,
    where the file and the line say all.
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise  # the user's module exists; what is missing is something it imports
        raise error(
            f"{setting} = {path!r}: no module {module_name!r} in {Path.cwd()} or on the Python path"
        ) from missing
    except SyntaxError as wrong:
        line = (wrong.text or "").strip()
        raise error(
            f"{setting} = {path!r}: {wrong.filename}, line {wrong.lineno}: {wrong.msg}: {line}"
        ) from wrong
    try:
        return getattr(module, attribute)
    except AttributeError as missing:
        raise error(f"{setting} = {path!r}: {module_name} has no {attribute!r}") from missing
