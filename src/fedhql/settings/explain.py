"""Turn a validation error into one line: which key, what was wrong, what is allowed."""

from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedhql.agents.kinds import KINDS

NOUNS = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Return the error as one line. `prefix` precedes every key; list items count from 1."""
    return "; ".join(_line(problem, model, prefix) for problem in error.errors())


def _line(problem: Any, model: type[BaseModel], prefix: str) -> str:
    location: tuple[str | int, ...] = problem["loc"]
    key = prefix + ".".join(str(part + 1 if isinstance(part, int) else part) for part in location)
    if problem["type"] == "value_error":  # our own validator wrote the whole message
        return f"{key}: {problem['ctx']['error']}"
    *sections, name = [part for part in location if isinstance(part, str)]
    for section in sections:
        field = model.model_fields[section]
        if (inside := _model_inside(field)) is None:  # a table whose keys the user chooses
            return f"{key}: {problem['input']!r} is wrong; allowed: {allowed(field)}"
        model = inside
    known = model.model_fields
    if name not in known:
        elsewhere = [] if sections else _sections_with(name, model)
        meant = elsewhere or get_close_matches(name, known, n=1)
        hint = f"did you mean {' or '.join(map(repr, meant))}? " if meant else ""
        return f"{key}: unknown key; {hint}allowed: {', '.join(known)}"
    wrong = "missing" if problem["type"] == "missing" else f"{problem['input']!r} is wrong"
    return f"{key}: {wrong}; allowed: {allowed(known[name])}"


def _sections_with(key: str, model: type[BaseModel]) -> list[str]:
    """Return the key in each section that has it, as in "federation.trim"; agents have options."""
    options = {option for kind in KINDS.values() for option in kind.settings.model_fields}
    return [
        f"{section}.{key}"
        for section, field in model.model_fields.items()
        if (inside := _model_inside(field)) is not None
        and (key in inside.model_fields or (section == "agents" and key in options))
    ]


def _model_inside(field: FieldInfo) -> type[BaseModel] | None:
    """Return the class of a section, or of the sections in a list; None for a plain value."""
    annotations = (field.annotation, *get_args(field.annotation))
    models = (a for a in annotations if isinstance(a, type) and issubclass(a, BaseModel))
    return next(models, None)


def allowed(field: FieldInfo) -> str:
    """Return a field's type and range in words."""
    if field.description:
        return field.description
    annotation, metadata = field.annotation, field.metadata
    if get_origin(annotation) in (Union, UnionType):  # an optional value
        annotation = next(choice for choice in get_args(annotation) if choice is not NoneType)
        if get_origin(annotation) is Annotated:
            annotation, *inner = get_args(annotation)
            metadata = [*metadata, *inner]
    if get_origin(annotation) is Literal:
        return ", ".join(repr(choice) for choice in get_args(annotation))
    if get_origin(annotation) is tuple:
        return f"a list, each {allowed(FieldInfo.from_annotation(get_args(annotation)[0]))}"
    noun = NOUNS.get(annotation, "a table") if isinstance(annotation, type) else "a table"
    limits = [limit for item in metadata if (limit := _limit(item))]
    return f"{noun} {' and '.join(limits)}".rstrip()


def _limit(item: object) -> str | None:
    match item:
        case Ge(limit):
            return f">= {limit}"
        case Gt(limit):
            return f"> {limit}"
        case Le(limit):
            return f"<= {limit}"
        case Lt(limit):
            return f"< {limit}"
    return None
