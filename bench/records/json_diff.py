"""The leaves of nested JSON by their dotted path, and where two differ. Pure."""

from collections.abc import Mapping

from pydantic import JsonValue


def flat(content: JsonValue, path: str = "") -> dict[str, JsonValue]:
    """Leaves of nested objects by their dotted path."""
    if not isinstance(content, dict) or not content:
        return {path: content}
    return {
        name: leaf
        for key, value in content.items()
        for name, leaf in flat(value, f"{path}.{key}" if path else key).items()
    }


def differing_keys(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> list[str]:
    """Keys whose values are not the same. A missing value is not the same as null."""
    return [
        key
        for key in dict.fromkeys([*one, *other])
        if (key in one) != (key in other) or not same(one.get(key), other.get(key))
    ]


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are equal as JSON: in Python ``1 == True``."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
