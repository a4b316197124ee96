"""Flat records as CSV, JSON or Parquet."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue


def text(records: Sequence[Mapping[str, JsonValue]], kind: Literal["csv", "json"]) -> str:
    """Records as CSV or as a JSON list; unknown values are empty or null."""
    import pandas as pd

    frame = pd.DataFrame(list(records))
    if kind == "csv":
        return frame.to_csv(index=False, lineterminator="\n")
    written: str = frame.to_json(orient="records", indent=2, double_precision=15)
    return written + "\n"


def parquet(records: Sequence[Mapping[str, JsonValue]]) -> bytes:
    """Records as Parquet. A Parquet column has one type, so values of different types become JSON text."""
    import pandas as pd

    frame = pd.DataFrame(list(records))
    for name in frame.select_dtypes(object):
        values = frame[name].dropna()
        large = any(not isinstance(value, str) and not -(2**63) <= value < 2**63 for value in values)
        if len(set(map(type, values))) > 1 or large:
            frame[name] = values.map(json.dumps)
    written: bytes = frame.to_parquet(index=False)
    return written
