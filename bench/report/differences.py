"""How a cell differs from the most similar one of others. Pure."""

import json
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from bench.records.cell import Cell
from bench.records.leaves import differing_keys, flat


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
            f"{field} {_value(after, field)} instead of {_value(before, field)}"
            for field in differing_keys(before, after)
        )


def _value(fields: Mapping[str, JsonValue], name: str) -> str:
    return json.dumps(fields[name]) if name in fields else "none"
