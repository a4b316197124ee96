"""The audits of `bench audit`, as one rank sees them. Each leaves its findings in `audit<N>.json`."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bench import spool
from bench.audit.collectives import Issued
from bench.backends import backend_of
from bench.cell import Audit, AuditKind
from bench.runner import recorder
from bench.runner.device import Shim
from bench.runner.setup import set_up
from bench.runner.steps import no_lap, step
from bench.spool import BeatFile

Look = Callable[[Audit, Shim, Path, int, BeatFile], None]


def run(audit: Audit, device: Shim, out: Path, rank: int, beat: BeatFile) -> None:
    """Raises whatever a training step raises; what was seen up to then is on disk."""
    LOOKS[audit.kind](audit, device, out, rank, beat)


def _collectives(audit: Audit, device: Shim, out: Path, rank: int, beat: BeatFile) -> None:
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100000"
    if backend_of(audit.cell).family != "ddp":  # there it crashes: torch 2.13, DDP over a wrapped group
        levels: Any = dist
        levels.set_debug_level(levels.DebugLevel.DETAIL)
    asked_last: str | None = None
    try:
        job = set_up(audit.cell, device, audit.batch_per_rank)
        batches = iter(job.loader(audit.batch_per_rank))
        for index in range(audit.steps):
            beat("audit", index, audit.steps)
            step(job, batches, no_lap)
    except BaseException as error:
        # A collective that is refused is not recorded.
        asked_last = recorder.site_of(error)
        raise
    finally:
        issued = Issued(rank=rank, collectives=recorder.collectives(), failed_in=asked_last)
        spool.write(spool.audit_file(out, rank), issued)


LOOKS: Mapping[AuditKind, Look] = {"collectives": _collectives}
