"""`python simulated.py FOLDER`: runs each attempt of FOLDER/*/spec.json as one rank of a world of which only it exists.

torch's `fake` process group takes the place of gloo: collectives return at once. What the rank issues is what it issues
in a real world of this size, with the real DDP, FSDP and DeepSpeed. torch's flight recorder does not see the group; a
dispatch mode stands in for it, and keeps what the recorder keeps.
"""

import os
import sys
import time
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench import backends, workloads
from bench.observe import flight
from bench.runner import attempt
from bench.runner.preload import preload
from bench.runner.server import launch_environment
from bench.store import spool
from bench.store.spool import Spec

NAMES = {
    torch.float32: "Float",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.bool: "Bool",
    torch.float64: "Double",
}
"""Of dtypes, as the flight recorder has them."""
FIRST_ARGUMENT_IS_OUTPUT = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")


class Recorder(TorchDispatchMode):
    """Records every collective of torch's c10d, of all groups."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace != "c10d":
            return out
        name = func.overloadpacket.__name__
        self._record(name, args)
        return (args[0], _done(args[0])) if name == "allreduce_" else out

    def _record(self, name: str, args: tuple[Any, ...]) -> None:
        group = dist.ProcessGroup.unbox(next(one for one in args if isinstance(one, torch.ScriptObject)))
        sides = [[leaf for leaf in tree_leaves(side) if isinstance(leaf, Tensor)] for side in args[:2]]
        both = any(part in name for part in FIRST_ARGUMENT_IS_OUTPUT)
        given, taken = sides if both else (sides[0], sides[0])
        if name == "barrier":
            given = taken = []
        self.entries.append(
            {
                "record_id": len(self.entries),
                "time_created_ns": time.time_ns(),
                "profiling_name": f"fake:{name}",
                "process_group": (group.group_name, ""),
                "input_sizes": [list(one.shape) for one in taken],
                "output_sizes": [list(one.shape) for one in given],
                "input_dtypes": [NAMES[one.dtype] for one in taken],
                "output_dtypes": [NAMES[one.dtype] for one in given],
            }
        )


def _done(tensors: list[Tensor]) -> Any:
    """Work that is finished. DDP asks it for the tensors, and that of the fake group has none."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future).boxed()


def simulate(folder: Path) -> None:
    """Run the attempt of ``folder`` in this process, as the rank that the folder's name ends with."""
    spec = spool.read(folder / "spec.json", Spec)
    cell, rank = spec.attempt.cell, int(folder.name.rpartition("-")[2])
    os.environ.update(launch_environment(folder / "accelerate.yaml", 1))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(cell.num_processes))
    os.environ["LOCAL_WORLD_SIZE"] = str(cell.num_processes)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=cell.num_processes)
    recorded = Recorder()
    flight.entries = lambda *, stacks=True: recorded.entries
    attempt.pulse = lambda *_: nullcontext()  # it would ask the group for a sequence number
    attempt.build_extensions = lambda _: None  # DeepSpeed's, for gloo on one machine
    with suppress(ImportError):
        import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    with recorded:
        attempt.run(spec, folder, rank)


def main(folder: Path) -> None:
    """Import once, and fork a process for each attempt, as a rank server does."""
    folders = sorted(file.parent for file in folder.glob("*/spec.json"))
    specs = [spool.read(one / "spec.json", Spec) for one in folders]
    cells = [spec.attempt.cell for spec in specs if spec is not None]
    preload(sorted({name for cell in cells for name in backends.preloads(cell)}))
    workloads.load(cells[0].workload)
    for one in folders:
        child = os.fork()
        if child == 0:
            try:
                simulate(one)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
