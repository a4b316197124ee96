"""In what two cells differ. Pure."""

import json
from collections.abc import Iterable

from pydantic import JsonValue

from bench.cell import Cell


def nearest(cell: Cell, others: Iterable[Cell]) -> str:
    """In words, the fields in which the one of ``others`` that differs least from ``cell`` does."""
    before = flat(cell.model_dump(mode="json"))
    candidates = [flat(other.model_dump(mode="json")) for other in {other.id: other for other in others}.values()]
    if not candidates:
        return "nothing"
    after = min(candidates, key=lambda other: len(differing(before, other)))
    return "; ".join(
        f"{field} {json.dumps(after.get(field))} instead of {json.dumps(before.get(field))}"
        for field in differing(before, after)
    )


def flat(content: JsonValue, path: str = "") -> dict[str, JsonValue]:
    """Leaves of nested objects by their dotted path."""
    if not isinstance(content, dict) or not content:
        return {path: content}
    return {
        name: leaf
        for key, value in content.items()
        for name, leaf in flat(value, f"{path}.{key}" if path else key).items()
    }


def differing(one: dict[str, JsonValue], other: dict[str, JsonValue]) -> list[str]:
    """Keys whose values are not the same, compared as JSON: in Python ``1 == True``."""

    def text(content: dict[str, JsonValue], key: str) -> str | None:
        return json.dumps(content[key]) if key in content else None

    return [key for key in dict.fromkeys([*one, *other]) if text(one, key) != text(other, key)]
