"""Write docs/settings.md and docs/cli.md from the settings classes and the command line.

    python docs/generate.py

A test fails when the pages are not what this script writes.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedhql.agents.kinds import KINDS
from fedhql.cli.main import app
from fedhql.cluster.resources import Resources
from fedhql.settings.explain import allowed
from fedhql.settings.sections import AgentSettings, ExperimentSettings
from fedhql.settings.served import ServedSettings

DOCS = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py: change the code, then run it again. -->"
SETTINGS_HEAD = f"""{MADE}
# Settings

Every setting of an experiment file, with its range, default and meaning. An experiment file is
TOML: [How-to](how-to.md#write-an-experiment-file) has an example. `fedhql run` takes the sections
up to `[[agents]]`. `fedhql serve` takes `[environment]`, `[federation]`, `[budget]`,
`[evaluation]`, `[service]` and `seed`. A key that is unknown, or a value that is out of range, is
refused by name.

`--set section.key=value` overrides a setting. `fedhql show PRESET` prints the file of a preset, and
`settings.toml` in a run directory has every default written out.
"""
CLI_HEAD = f"""{MADE}
# Command line

Every command with its arguments, options and defaults. `fedhql COMMAND --help` prints the same in a
terminal. A user's mistake ends a command with exit code 2 and one line on stderr, which says what
is allowed.
"""


def settings_page() -> str:
    parts = [SETTINGS_HEAD]
    for key, field in ExperimentSettings.model_fields.items():
        if key != "agents":
            parts.append(_section(f"[{key}]", _model(field)))
    parts.append(_section("[[agents]]", AgentSettings))
    parts.append("Every other key belongs to the kind:")
    parts.append(_section("agents.resources", Resources, level=3))
    for kind, record in KINDS.items():
        parts.append(_section(f'kind = "{kind}"', record.settings, level=3, but=_base(kind)))
    served = ServedSettings.model_fields
    parts.append(_section("[service]", _model(served["service"])))
    parts.append("## seed\n")
    parts.append(_table(ServedSettings, {"seed": served["seed"]}))
    return "\n".join(parts)


def cli_page() -> str:
    return "\n".join([CLI_HEAD, *_command("fedhql", typer.main.get_command(app))])


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field, its own class's or the nearest base's."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _docstrings(base)
    return found


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                found[name] = " ".join(words.split())
    return found


def _model(field: FieldInfo) -> type[BaseModel]:
    assert isinstance(field.annotation, type)
    return field.annotation


def _base(kind: str) -> str | None:
    """Return the kind whose settings this kind extends."""
    own = KINDS[kind].settings
    return next((name for name, each in KINDS.items() if each.settings in own.__mro__[1:]), None)


def _section(title: str, model: type[BaseModel], level: int = 2, but: str | None = None) -> str:
    fields = model.model_fields
    lines = [f"{'#' * level} {title}\n", inspect.cleandoc(model.__doc__ or "") + "\n"]
    if but is not None:
        lines.append(f"It has all settings of `{but}`, and:\n")
        fields = {k: v for k, v in fields.items() if k not in KINDS[but].settings.model_fields}
    return "\n".join([*lines, _table(model, fields)])


def _table(model: type[BaseModel], fields: Mapping[str, FieldInfo]) -> str:
    said = meanings(model)
    rows = [
        f"| `{key}` | {_cell(allowed(field))} | {_default(field)} | {_cell(said.get(key, ''))} |"
        for key, field in fields.items()
    ]
    return "\n".join(["| key | allowed | default | meaning |", "|---|---|---|---|", *rows, ""])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{_toml(field.default)}`"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
        case int():
            return f"{value:_}" if value >= 10_000 else str(value)
    return f"{value:g}" if value >= 1e6 else str(value)


def _cell(text: str) -> str:
    """Return the text for one cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def _command(name: str, command: Any, level: int = 1) -> Iterator[str]:
    inside = getattr(command, "commands", None)
    if level > 1:
        yield f"{'#' * level} {name}\n"
        yield inspect.cleandoc(command.help or "") + "\n"
    if inside is not None:
        for each in sorted(inside):
            yield from _command(f"{name} {each}", inside[each], level + 1)
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each for each in command.params if each.param_type_name == "option" and not each.hidden
    ]
    words = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
    yield f"```text\n{' '.join([name, *words, '[OPTIONS]'])}\n```\n"
    rows = [_row(f"`{each.metavar}`", each) for each in arguments]
    rows += [_row(_names(each), each) for each in options]
    if rows:
        yield "\n".join(["| argument or option | default | meaning |", "|---|---|---|", *rows, ""])


def _names(option: Any) -> str:
    names = " / ".join([*option.opts, *option.secondary_opts])
    kind = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    return f"`{_cell(names + kind)}`"


def _row(name: str, parameter: Any) -> str:
    text = parameter.help or ""
    said = re.search(r"\s*\[default: (.*)\]$", text)
    if said:
        text, default = text[: said.start()], said[1]
    elif parameter.required:
        default = "required"
    elif parameter.default in (None, False) or callable(parameter.default):
        default = ""
    else:
        default = "on" if parameter.default is True else f"`{parameter.default}`"
    return f"| {name} | {_cell(default)} | {_cell(text)} |"


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(settings_page(), encoding="utf-8")
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
