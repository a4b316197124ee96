"""The rows for other programs as a pandas DataFrame; `bench.load` makes one of runs."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from bench.report.merge_runs import merge, run_names
from bench.report.rows import Summary
from bench.report.sources import newest_sources
from bench.report.summary import summarize
from bench.report.tables.export import records
from bench.store import last_command
from bench.store.run_folder import Store

if TYPE_CHECKING:
    import pandas as pd


def load(folders: Sequence[Path]) -> "pd.DataFrame":
    """See `bench.load`."""
    return frame(records(summary_of(folders)))


def summary_of(folders: Sequence[Path]) -> Summary:
    """The results of runs, merged as in a report. A file that cannot be read is left out with a warning.

    Raises:
        InputError: a folder holds no run.
    """
    different = list({folder.resolve(): folder for folder in folders}.values())
    stores = dict(zip(run_names(different), map(Store, different), strict=True))
    results = {name: store.results() for name, store in stores.items()}
    merged, _ = merge(results, {name: store.probes() for name, store in stores.items()})
    for store in stores.values():
        for file, why in store.unreadable.items():
            warnings.warn(f"{file} is left out: {why}", stacklevel=4)
    calibrations = [known for store in stores.values() if (known := store.calibration())]
    return summarize(merged, calibrations, newest_sources(merged, last_command.of_runs(stores)))


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
