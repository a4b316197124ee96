"""Flat records as CSV, JSON or Parquet."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from bench.report.tables.data_frame import frame


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
