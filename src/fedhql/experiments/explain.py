"""Turns a validation error into one line: which key, what was wrong, what is allowed."""

from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    return "; ".join(_line(problem, model, prefix) for problem in error.errors())


def _line(problem: Any, model: type[BaseModel], prefix: str) -> str:
    location: tuple[str | int, ...] = problem["loc"]
    key = prefix + ".".join(str(part + 1 if isinstance(part, int) else part) for part in location)
    if problem["type"] == "extra_forbidden":
        known = list(_model_at(model, location).model_fields)
        close = get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{key}: unknown key; {hint}allowed: {', '.join(known)}"
    allowed = _allowed(_field_at(model, location))
    if problem["type"] == "missing":
        return f"{key}: missing; allowed: {allowed}"
    return f"{key} = {problem['input']!r}: allowed: {allowed}"


def _model_at(model: type[BaseModel], location: tuple[str | int, ...]) -> type[BaseModel]:
    for part in location[:-1]:
        inner = model.model_fields[part].annotation if isinstance(part, str) else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model


def _field_at(model: type[BaseModel], location: tuple[str | int, ...]) -> FieldInfo:
    names = [part for part in location if isinstance(part, str)]
    for name in names[:-1]:
        field = model.model_fields[name]
        inner = next(
            (a for a in (field.annotation, *get_args(field.annotation)) if _is_model(a)), None
        )
        if inner is None:
            return field
        model = inner
    return model.model_fields[names[-1]]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _allowed(field: FieldInfo) -> str:
    """The field's type and range in words."""
    annotation = field.annotation
    metadata = [*field.metadata]
    if get_origin(annotation) is tuple:
        element = FieldInfo.from_annotation(get_args(annotation)[0])
        if _is_model(element.annotation):
            return "one or more [[tables]]"
        return f"a list, each {_allowed(element)}"
    if get_origin(annotation) in (Union, UnionType):
        inner = next(a for a in get_args(annotation) if a is not type(None))
        field = FieldInfo.from_annotation(inner)
        annotation, metadata = field.annotation, [*metadata, *field.metadata]
    if get_origin(annotation) is Literal:
        return ", ".join(repr(choice) for choice in get_args(annotation))
    words = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}
    noun = words.get(annotation, "a table") if isinstance(annotation, type) else "a table"
    limits = [text for item in metadata if (text := _limit(item))]
    return " and ".join([f"{noun} {limits[0]}", *limits[1:]]) if limits else noun


def _limit(item: Any) -> str | None:
    match item:
        case Ge(ge):
            return f">= {ge}"
        case Gt(gt):
            return f"> {gt}"
        case Le(le):
            return f"<= {le}"
        case Lt(lt):
            return f"< {lt}"
        case MinLen(length):
            return f"of length >= {length}"
    return None
