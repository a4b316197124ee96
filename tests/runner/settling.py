"""`python settling.py FOLDER`: two real ranks warm up for a second; rank 0 began half a second before rank 1.

Prints, as JSON, of each rank the steps and the share of that second.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

from bench.runner import steps
from bench.runner.device import Cpu
from bench.runner.steps import METRICS, Window, settle

RANKS, UNTIL_S, EARLIER_S, STEP_S = 2, 1.0, 0.5, 0.02


def warm_up(folder: Path, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # accelerate asks for them; the group stands already
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    job: Any = SimpleNamespace(accelerator=Accelerator(cpu=True), overflows=lambda: lambda: False)
    assert job.accelerator.num_processes == RANKS

    def step(*_: Any) -> torch.Tensor:
        time.sleep(STEP_S)
        return torch.zeros(len(METRICS))

    steps.step = step
    since_s = time.perf_counter() - (EARLIER_S if rank == 0 else 0.0)
    warm = settle(job, iter(()), since_s, Window([STEP_S], {}, []), Cpu(), lambda *_: None, UNTIL_S)
    spent_s = time.perf_counter() - since_s
    (folder / f"{rank}.json").write_text(json.dumps({"steps": len(warm.metrics), "spent": spent_s / UNTIL_S}))


def main(folder: Path) -> None:
    children = []
    for rank in range(RANKS):
        if (child := os.fork()) == 0:
            warm_up(folder, rank)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    print(json.dumps([json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
