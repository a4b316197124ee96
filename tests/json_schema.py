"""JSON Schema as far as bench's own schemas use it: a word that is not known here fails the test that meets it."""

import re
from collections.abc import Callable
from typing import Any

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
OF_TYPE: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "required": ("object", lambda value, names: set(names) <= set(value)),
    "minItems": ("array", lambda value, least: len(value) >= least),
    "uniqueItems": ("array", lambda value, _: all(item not in value[:index] for index, item in enumerate(value))),
    "pattern": ("string", lambda value, pattern: re.search(pattern, value) is not None),
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "minimum": ("number", lambda value, least: value >= least),
    "exclusiveMinimum": ("number", lambda value, least: value > least),
    "maximum": ("number", lambda value, most: value <= most),
}
"""What they ask of values of a type; all others meet them."""
SAY_NOTHING = ("$schema", "$defs", "title", "description", "default", "examples")


def fits(value: Any, schema: dict[str, Any], whole: dict[str, Any] | None = None) -> bool:
    """Whether ``value`` is what ``schema`` allows.

    Args:
        whole: the schema that ``$ref`` looks into.
    """

    def meets(word: str, given: Any) -> bool:
        if word in OF_TYPE:
            kind, check = OF_TYPE[word]
            return not TYPES[kind](value) or check(value, given)
        inside = whole or schema
        match word:
            case "type":
                found = any(TYPES[name](value) for name in ([given] if isinstance(given, str) else given))
            case "enum":
                found = value in given
            case "const":
                found = value == given
            case "anyOf":
                found = any(fits(value, one, inside) for one in given)
            case "$ref":
                found = fits(value, inside["$defs"][given.removeprefix("#/$defs/")], inside)
            case "properties":
                found = all(fits(value[name], one, inside) for name, one in given.items() if name in _fields(value))
            case "additionalProperties":
                others = [value[name] for name in _fields(value) if name not in schema.get("properties", {})]
                found = (
                    not others or given is True or (given is not False and all(fits(o, given, inside) for o in others))
                )
            case "items":
                found = not isinstance(value, list) or all(fits(item, given, inside) for item in value)
            case _:
                raise NotImplementedError(word)
        return bool(found)

    return all(meets(word, given) for word, given in schema.items() if word not in SAY_NOTHING)


def _fields(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
