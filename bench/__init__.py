"""Compare training backends, batch sizes and settings on your own hardware."""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"


def load(run: str | PathLike[str], *more: str | PathLike[str]) -> "pd.DataFrame":
    """The results of runs as a table: one row for each cell and batch, with the columns of csv and parquet.

    Settings have the names of the matrix. Figures are in base units, which their names state. Where two runs hold the
    same cell, the column ``run`` tells them apart. A result file that cannot be read is left out with a warning.

    Args:
        run: a run's folder, such as ``reports/quickstart``.
        more: further runs, for the same table.

    Raises:
        bench.errors.InputError: a folder holds no run.
    """
    from pathlib import Path

    from bench.cli.collect import load

    return load([Path(folder) for folder in (run, *more)])
