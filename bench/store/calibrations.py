"""What `bench calibrate` learnt, by machine: files of the user, outside of every run and repository.

A run copies what is known of its machine into its own folder, so that its report is the same elsewhere.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from bench.records.calibration import Calibration
from bench.records.machine import Machine
from bench.store import spool


def folder(environment: Mapping[str, str] | None = None) -> Path:
    """``BENCH_STATE``, else bench's folder below ``XDG_STATE_HOME`` or ``~/.local/state``."""
    variables = os.environ if environment is None else environment
    if own := variables.get("BENCH_STATE"):
        return Path(own)
    home = variables.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "bench"


def save(learnt: Calibration, state: Path) -> Path:
    """The file that was written; earlier ones stay."""
    state.mkdir(parents=True, exist_ok=True)
    file = state / f"calibration-{learnt.measured_at.replace(':', '').replace('+0000', 'Z')}.json"
    spool.write(file, learnt)
    return file


def newest(machine: Machine, state: Path) -> Calibration | None:
    """The latest one of a machine that is not unlike this one; None where there is none, or none can be read."""
    found = []
    for file in state.glob("calibration-*.json"):
        try:
            if (learnt := spool.read(file, Calibration)) is not None and not learnt.machine.unlike(machine):
                found.append(learnt)
        except (ValidationError, OSError):
            continue  # of another version, or torn: it is as good as none
    return max(found, key=lambda learnt: learnt.measured_at, default=None)
