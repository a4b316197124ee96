"""The fields in which two cells differ. Pure."""

import json
from collections.abc import Iterable

from pydantic import JsonValue

from bench.records.cell import Cell
from bench.report.contract import same


class Cells:
    """Cells to find the most similar one in."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._flat = [flat(cell.model_dump(mode="json")) for cell in cells]

    def nearest(self, cell: Cell) -> str:
        """In words, how ``cell`` differs from the most similar one of these."""
        before = flat(cell.model_dump(mode="json"))
        if not self._flat:
            return "nothing"
        after = min(self._flat, key=lambda other: len(differing_keys(before, other)))
        return "; ".join(
            f"{field} {json.dumps(after.get(field))} instead of {json.dumps(before.get(field))}"
            for field in differing_keys(before, after)
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


def differing_keys(one: dict[str, JsonValue], other: dict[str, JsonValue]) -> list[str]:
    """Keys whose values are not the same. A missing value is not the same as null."""
    return [
        key
        for key in dict.fromkeys([*one, *other])
        if (key in one) != (key in other) or not same(one.get(key), other.get(key))
    ]
