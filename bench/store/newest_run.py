"""The newest run of a folder of runs, by the modification time of each `run.json`."""

import os
from contextlib import suppress
from pathlib import Path

from bench.errors import InputError


def newest(reports: Path) -> Path:
    """The run folder below ``reports`` that was opened last. Runs without results count only when no run has any.

    Raises:
        InputError: there is no run.
    """
    runs = sorted(reports.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    runs = [run for run in runs if any(run.parent.glob("attempts/*/b*/result.json"))] or runs
    if not runs:
        raise InputError(
            "no run below this folder", where=str(reports), fix="name a run's folder; `bench run MATRIX` makes one"
        )
    return runs[-1].parent


def no_run(folder: Path) -> InputError:
    """What is wrong with ``folder``, which holds no run, and which runs are near it."""
    if folder.is_dir():
        problem = "holds no run"
    else:
        problem = "is a file, and a run is a folder" if folder.is_file() else "no such folder"
    runs, fix = _nearby(folder), "`bench run MATRIX` makes one"
    return InputError(problem, where=str(folder), allowed=runs or None, fix=None if runs else fix)


def _nearby(folder: Path) -> list[str]:
    """The runs in ``folder`` or, if there are none, beside it; near a file, such as a matrix, also in folders there."""
    runs = list(folder.glob("*/run.json")) or list(folder.parent.glob("*/run.json"))
    if folder.is_file():
        runs += [*folder.parent.glob("run.json"), *folder.parent.glob("*/*/run.json")]
    return sorted(str(run.parent) for run in runs)


def become(run: Path) -> None:
    """Make ``run``, a `run.json` just written, the newest, even if the clock was set back since the last run."""
    with suppress(OSError):  # another run may be deleted meanwhile
        others = [other.stat().st_mtime_ns for other in run.parent.parent.glob("*/run.json") if other != run]
        if (latest := max(others, default=0)) >= run.stat().st_mtime_ns:
            os.utime(run, ns=(latest + 10**6,) * 2)
