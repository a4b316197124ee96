"""`python drawn.py FOLDER CASE...`: build each case as an attempt does, as one rank; write a digest of each weight.

A case is BACKEND:PRESET:PRECISION. Each is built in a fork of one process that has imported all, as in a rank server.
"""

import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.tensor import DTensor

from bench import backends, workloads
from bench.launch import attempt_files
from bench.records.cell import Attempt, Cell, Measure
from bench.runner.device import Cpu
from bench.runner.preload import build_extensions, preload
from bench.runner.server import launch_environment
from bench.runner.setup import set_up
from bench.store import spool

SHARED = ("fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3", "ddp")
"""Built by two ranks; ``single`` by one."""


def cell_of(case: str) -> Cell:
    backend, preset, precision, *_ = case.split(":")
    kind = workloads.load("pi07")
    options = kind.Config.model_validate(kind.presets[preset]).model_dump(mode="json")
    ranks = 1 if backend == "single" else 2
    return Cell(
        backend=backend,
        workload="pi07",
        options=options,
        num_processes=ranks,
        mixed_precision=precision,  # type: ignore[arg-type]
        measure=Measure(),
    )


def digests(weights: Iterator[tuple[str, Tensor]]) -> dict[str, str]:
    """Of each weight, as bf16: some backends keep no more."""
    return {
        name: hashlib.sha256(one.bfloat16().view(torch.int16).numpy().tobytes()).hexdigest() for name, one in weights
    }


def exact(weights: Iterator[tuple[str, Tensor]]) -> dict[str, str]:
    """Of each fp32 weight."""
    return {name: hashlib.sha256(one.numpy().tobytes()).hexdigest() for name, one in weights}


def whole(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each weight under its own name, gathered from the ranks."""
    gathered: Any
    if isinstance(model, FSDP):
        gathered = FSDP.summon_full_params(model, writeback=False)
    else:
        from deepspeed import zero

        gathered = zero.GatheredParameters(list(model.parameters()))
    with gathered:
        for name, one in model.named_parameters():
            weight = one.full_tensor() if isinstance(one, DTensor) else one
            yield name.replace("_fsdp_wrapped_module.", "").removeprefix("module."), weight.detach().clone()


def meeting(own: Path) -> int:
    """The port where the ranks of a case meet. The first rank chooses it just before it is used."""
    file = own / "port"
    if os.environ.get("RANK", "0") == "0":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            spool.write_text(file, str(probe.getsockname()[1]))
    while not file.exists():
        time.sleep(0.01)
    return int(file.read_text())


def build(case: str, folder: Path) -> None:
    cell = cell_of(case)
    own = folder / case
    own.mkdir(exist_ok=True)
    attempt = Attempt(cell=cell, batch_per_rank=1)
    for file, text in attempt_files.files(attempt, workloads.load("pi07").units, "cpu", {}, str(own)).items():
        spool.write_text(own / file, text)  # the other rank writes the same, and reads
    os.environ.update(launch_environment(own / "accelerate.yaml", meeting(own)))
    if backends.backend_of(cell).family == "deepspeed":
        build_extensions(["ShareMemCommBuilder"])
    job = set_up(cell, Cpu(), 1, check=True)
    found = (digests if cell.mixed_precision == "bf16" else exact)(whole(job.model))
    (own / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def main(folder: Path, cases: list[str]) -> None:
    rank = int(os.environ["RANK"])
    preload({module for case in cases for module in backends.preloads(cell_of(case))})
    for case in cases:
        if case.startswith("single:") and rank:
            continue
        child = os.fork()
        if child == 0:
            try:
                if case.startswith("single:"):
                    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                        del os.environ[name]
                build(case, folder)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{case} failed on rank {rank}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
