"""What `bench calibrate` learned, by machine: files of the user, outside of every run and repository.

A run copies what is known of its machine into its own folder, so that its report is the same elsewhere.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bench.errors import InputError
from bench.records.base import Frozen
from bench.records.calibration import Calibration, Paces
from bench.records.machine import Machine
from bench.store import spool

R = TypeVar("R", bound=Frozen)


def folder(environment: Mapping[str, str] | None = None) -> Path:
    """``BENCH_STATE``, else bench's folder below ``XDG_STATE_HOME`` or ``~/.local/state``. For a user without a home, a
    folder that nobody can make."""
    variables = os.environ if environment is None else environment
    if own := variables.get("BENCH_STATE"):
        return Path(own)
    if home := variables.get("XDG_STATE_HOME"):
        return Path(home) / "bench"
    try:
        return Path.home() / ".local" / "state" / "bench"
    except RuntimeError:
        return Path(os.devnull) / "bench"


def make(state: Path) -> None:
    """Make the folder, where it is missing."""
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder cannot be made: {error.strerror}", where=str(state), fix="BENCH_STATE chooses another one"
        ) from error


def save(learnt: Calibration, state: Path) -> Path:
    """The file that was written; earlier ones stay."""
    return _save(learnt, "calibration", learnt.measured_at, state)


def newest(machine: Machine, state: Path) -> Calibration | None:
    """The latest one of a machine that is not unlike this one; None where there is none, or none can be read."""
    found = [learnt for learnt in _read(state, "calibration", Calibration) if not learnt.machine.unlike(machine)]
    return max(found, key=lambda learnt: learnt.measured_at, default=None)


def save_paces(fitted: Paces, state: Path) -> Path:
    """The file that was written; earlier ones stay."""
    return _save(fitted, "paces", fitted.fitted_at, state)


def paces(state: Path) -> list[Paces]:
    """All that can be read, the latest first."""
    return sorted(_read(state, "paces", Paces), key=lambda fitted: fitted.fitted_at, reverse=True)


def _save(learnt: Frozen, kind: str, at: str, state: Path) -> Path:
    make(state)
    file = state / f"{kind}-{at.replace(':', '').replace('+0000', 'Z')}.json"
    spool.write(file, learnt)
    return file


def _read(state: Path, kind: str, record: type[R]) -> Iterator[R]:
    for file in state.glob(f"{kind}-*.json"):
        try:
            if (learnt := spool.read(file, record)) is not None:
                yield learnt
        except (ValidationError, OSError):
            continue  # of another version, or torn: it is as good as none
