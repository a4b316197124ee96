"""Flat records as a pandas DataFrame, CSV, JSON or Parquet."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

if TYPE_CHECKING:
    import pandas as pd


def frame(rows: Sequence[Mapping[str, JsonValue]]) -> "pd.DataFrame":
    """One row a record. A column of whole numbers stays one where some are unknown."""
    import pandas as pd

    table = pd.DataFrame(list(rows))
    for name in table:
        column = [row.get(str(name)) for row in rows]
        whole = [value for value in column if type(value) is int and abs(value) < 2**63]
        if whole and 0 < column.count(None) == len(column) - len(whole):
            table[name] = pd.array([value if isinstance(value, int) else None for value in column], dtype="Int64")
    return table


def text(records: Sequence[Mapping[str, JsonValue]], kind: Literal["csv", "json"]) -> str:
    """Records as CSV or as a JSON list; unknown values are empty or null."""
    table = frame(records)
    if kind == "csv":
        return table.to_csv(index=False, lineterminator="\n")
    written: str = table.to_json(orient="records", indent=2, double_precision=15)
    return written + "\n"


def parquet(records: Sequence[Mapping[str, JsonValue]]) -> bytes:
    """Records as Parquet. A Parquet column has one type, so values of different types become JSON text."""
    table = frame(records)
    for name in table.select_dtypes(object):
        values = table[name].dropna()
        large = any(not isinstance(value, str) and not -(2**63) <= value < 2**63 for value in values)
        if len(set(map(type, values))) > 1 or large:
            table[name] = values.map(json.dumps)
    written: bytes = table.to_parquet(index=False)
    return written
