"""`python hybrid.py FOLDER`: four real ranks on a hybrid mesh, of which the last one never joins its shard group.

Prints what bench makes of it, as JSON.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from bench.diagnosis.classify import classify
from bench.observe.beats import BeatFile
from bench.records.phases import Stage
from bench.runner.device import be_patient
from bench.runner.heartbeat import pulse
from bench.store import spool
from bench.store.beats import read_beat

RANKS, ASLEEP, IN_SHARD_GROUP = 4, 3, 5


def train(folder: Path, rank: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS,
        timeout=timedelta(minutes=20),
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    be_patient()
    groups = dist.distributed_c10d._world.pg_names
    waits = {name: group._get_backend(torch.device("cpu")).options._timeout for group, name in groups.items()}
    (folder / f"waits{rank}.json").write_text(json.dumps({name: wait.total_seconds() for name, wait in waits.items()}))
    beat = BeatFile(folder, rank)
    with pulse(folder, rank, beat):
        beat(Stage.MEASURE, 0, 3)
        for _ in range(IN_SHARD_GROUP):
            dist.all_reduce(torch.ones(7), group=mesh["dp_shard"].get_group())
        if rank == ASLEEP:
            time.sleep(600)
        dist.all_reduce(torch.ones(9), group=mesh["dp_shard"].get_group())
        dist.all_reduce(torch.ones(11), group=mesh["dp_replicate"].get_group())
        time.sleep(600)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)


def main(folder: Path) -> None:
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                train(folder, rank)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        children.append(child)
    try:
        expected = {ASLEEP: IN_SHARD_GROUP}  # the others have issued at least one more

        def counts() -> dict[int, int]:
            beats = {rank: read_beat(folder, rank) for rank in range(RANKS)}
            return {rank: beat.collective for rank, beat in beats.items() if beat is not None}

        wait_for(lambda: all(counts().get(rank, 0) >= expected.get(rank, IN_SHARD_GROUP + 1) for rank in range(RANKS)))
        spool.ask_for_diagnosis(folder)
        wait_for(lambda: len(spool.read_stuck(folder, RANKS)) == RANKS)
        outcome = classify(
            [], world_size=RANKS, cancelled="no progress for 60 s", stuck=spool.read_stuck(folder, RANKS)
        )
        waits = [json.loads((folder / f"waits{rank}.json").read_text()) for rank in range(RANKS)]
        print(json.dumps({"kind": outcome.kind, "reason": outcome.reason, "counts": counts(), "waits": waits}))
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
