"""Plain values -> validated data; pydantic's errors in a user's words."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, JsonValue, ValidationError

from bench.errors import InputError, near_miss
from bench.matrix.yaml_file import Key, Places, dotted, refusal, show

Model = TypeVar("Model", bound=BaseModel)


def validate(
    model: type[Model],
    data: Mapping[str, JsonValue],
    locate: Callable[[Key], tuple[Key, str | None]],
    hint: Callable[[str], str | None] = lambda _: None,
) -> Model:
    """``data`` as a ``model``. Validation is strict, on JSON: a list is accepted for a tuple, but no text for a number.

    ``locate`` maps a key of ``data`` to the key to show and the place where it was written. ``hint`` suggests a fix for
    the dotted name of an unknown field.

    Raises:
        InputError: the first problem, and the number of others.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        grouped: dict[Key, list[Any]] = {}
        for detail in error.errors(include_url=False):
            grouped.setdefault(_key_in(data, detail["loc"], detail["type"]), []).append(detail)
    key, details = next(iter(grouped.items()))
    value = show(_value_at(data, key))
    allowed: str | None = None
    fix: str | None = None
    match details[0]["type"]:
        case "extra_forbidden":
            fields = _fields_at(model, key[:-1])
            problem, allowed = f"unknown field {key[-1]!r}", ", ".join(fields)
            fix = near_miss(key[-1], fields) or hint(dotted(key))
        case "missing":
            problem = "is required"
        case "value_error" | "assertion_error":
            message = details[0]["msg"].partition(", ")[2]
            problem = f"{value} cannot be used: {message}" if key else message
            mentioned = [name for name in data if re.search(rf"\b{re.escape(name)}\b", message)]
            key = key or tuple(mentioned[-1:])  # a check of several fields at once: point at one that it mentions
        case _:
            problem = f"{value} cannot be used"
            allowed = " or ".join(dict.fromkeys(_expected(detail) for detail in details))
            fix = _without_quotes(_value_at(data, key), {detail["type"] for detail in details})
            fix = fix or _MEANT.get(str(key[-1]))
    if len(grouped) > 1:
        problem += f" (and {len(grouped) - 1} more problem{'s' * (len(grouped) > 2)})"
    shown, where = locate(key)
    raise InputError(problem, where=where, field=dotted(shown) or None, allowed=allowed, fix=fix)


_MEANT = {"max_grad_norm": "null clips nothing"}
"""What to write instead where tools differ, by the field."""


def _without_quotes(value: JsonValue, errors: set[str]) -> str | None:
    """What to do about a number, or true or false, that is written as text."""
    is_number = isinstance(value, str) and re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", value, re.ASCII | re.IGNORECASE)
    fits = {"int_type", "float_type"} if is_number else {"bool_type"} if value in ("true", "false") else set()
    return f"remove the quotes: {value}" if errors & fits else None


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of fields to values",
    "model_type": "a mapping of fields to values",
    "none_required": "null",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "too_short": "at least {min_length} value",
    "string_too_long": "at most {max_length} characters",
    "byte_size": "a size such as 8GiB",
    "byte_size_unit": "a size such as 8GiB",
}
"""What each of pydantic's error types expects, in a user's words."""


def _expected(detail: Any) -> str:
    template = _EXPECTED.get(detail["type"])
    return template.format_map(detail.get("ctx", {})) if template else str(detail["msg"])


def _key_in(data: JsonValue | Mapping[str, JsonValue], loc: tuple[str | int, ...], kind: str) -> Key:
    """``loc`` without the parts that pydantic adds, such as the members of a union."""
    key: Key = ()
    for part in loc[:-1] if kind == "missing" else loc:
        match data:
            case dict() if part in data:
                data = data[str(part)]
            case list() if isinstance(part, int):
                data = data[part]
            case _:
                continue
        key = (*key, part)
    return (*key, loc[-1]) if kind == "missing" else key


def _value_at(data: Any, key: Key) -> JsonValue:
    for part in key:
        data = data.get(part) if isinstance(data, Mapping) else data[part]
    return data if not isinstance(data, Mapping) else dict(data)


def _fields_at(model: type[BaseModel], key: Key) -> list[str]:
    for part in key:
        if isinstance(part, int):
            continue  # one of a list of models
        inner = _model_in(model.model_fields[part].annotation) if part in model.model_fields else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of ``Model``, ``Model | None`` and ``list[Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def check_names(
    given: Mapping[str, object],
    key: Key,
    allowed: Sequence[str],
    places: Places,
    hint: Callable[[str], str | None] = lambda _: None,
) -> None:
    """Raises InputError for the first name that is not allowed. ``hint`` may suggest a fix for it."""
    for name in given:
        if name not in allowed:
            raise refusal(
                f"unknown field {name!r}",
                places,
                (*key, name),
                allowed=allowed,
                fix=hint(name) or near_miss(name, allowed),
            )
