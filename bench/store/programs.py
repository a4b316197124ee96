"""Traced programs, by what decides them: files of the user, outside of every run, so that no cell is traced twice."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from bench.records.base import Device, Frozen
from bench.records.cell import Cell
from bench.records.program import Program
from bench.records.sources import Sources
from bench.store import spool

KEPT = 200
"""Programs that stay; the oldest go."""


class ProgramRequest(Frozen):
    """One program to trace."""

    key: str
    cell: Cell
    device: Device
    batches: tuple[int, ...]
    cudnn: bool = False
    """Whether attention tries cuDNN's kernel first."""


class ProgramRequests(Frozen):
    """What bench asks of the process that traces."""

    requests: tuple[ProgramRequest, ...]
    workload_folder: str | None
    """Where the workload's module is looked for first."""


class NotTraced(Frozen):
    """Why there is no program."""

    reason: str


def request_of(
    cell: Cell,
    device: Device,
    batches: tuple[int, ...],
    sources: Sources,
    libraries: Mapping[str, str],
    *,
    cudnn: bool = False,
    autocasts: bool = False,
) -> ProgramRequest:
    """The request for a cell. Cells that differ only in their backend have the same key, if they hold
    their weights in the same dtype while they compute.

    Args:
        autocasts: `backends.autocasts` of the cell.
    """
    model = (cell.workload, cell.options, cell.mixed_precision, cell.measure.seed)  # samples may depend on the seed
    decides = (*model, autocasts, device, batches, sources, dict(libraries), "with autocast", cudnn)
    text = json.dumps(decides, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return ProgramRequest(key=key, cell=cell, device=device, batches=batches, cudnn=cudnn)


def find(state: Path, key: str) -> Program | None:
    """The stored program; None if there is none that can be read."""
    try:
        return spool.read(_file(state, key), Program)
    except (ValidationError, OSError):
        return None


def keep(state: Path, key: str, program: Program) -> None:
    """Store a program for later, if the folder can be written."""
    file = _file(state, key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        spool.write_text(file, program.model_dump_json())
        oldest_first = sorted(file.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in oldest_first[:-KEPT]:
            old.unlink(missing_ok=True)


def answer(folder: Path, key: str) -> Program | NotTraced | None:
    """What the tracing process has written for a request; None while it has not."""
    if (program := spool.read(folder / f"{key}.json", Program)) is not None:
        return program
    return spool.read(folder / f"{key}.failed.json", NotTraced)


def _file(state: Path, key: str) -> Path:
    return state / "programs" / f"{key}.json"
