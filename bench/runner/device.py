"""What a training step does differently on each kind of device: process group, memory, synchronization.

A new device needs a class here, an entry in DEVICE_ADAPTERS, and its value in `Device` (bench/records/base.py). Devices
also differ in the config and environment of a launch (bench/backends, bench/launch/environment.py), in how the machine
finds them (bench/machine), in what `bench doctor` tries (trial.py) and in the name of torch's flight recorder
(recorder.py).
"""

import contextlib
import ctypes
import os
import resource
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState, state
from accelerate.utils import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    KwargsHandler,
    set_numa_affinity,
)
from torch.distributed import distributed_c10d
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn import functional

from bench import processes
from bench.backends import Family
from bench.machine import energy, gpus, numa
from bench.machine.hardware import host_bytes
from bench.observe import device
from bench.observe.device import status_bytes
from bench.records.base import Device
from bench.records.cell import Train
from bench.records.precision import SCALED
from bench.records.rank_outcome import Memory

COLLECTIVE_TIMEOUT = timedelta(days=1)
"""Timeout of collectives: long, because bench itself ends ranks that hang, and names the rank that the others wait for.
NCCL's watchdog would abort after 10 min."""


FULL_BYTES = 128 * 2**20
"""A device with less is full: a handle of cuDNN, its kernels and a plan may need as much."""


def be_patient() -> None:
    """Give every process group that exists `COLLECTIVE_TIMEOUT`. DeepSpeed clones the world, and a mesh splits it: such
    groups have torch's defaults, 10 min with NCCL and 30 min with gloo."""
    if dist.is_initialized():
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT, group)


class DeviceAdapter(Protocol):
    """One rank's device. ``open`` comes first, at most after ``bind_to_cores``, then ``limit_memory``; ``reset_peaks``
    and ``memory`` enclose what is measured."""

    def open(self, family: Family, train: Train, *, autocast: bool = False) -> Accelerator:
        """Join the process group and return the accelerator that the environment asks for.

        Args:
            train: the settings of DDP count.
            autocast: whether accelerate runs forward under autocast, as it does by default where the precision is bf16.
                Without it, forward computes in the dtype of the weights.
        """

    def bind_to_cores(self) -> None:
        """Before ``open``: run on the cores beside the device alone, and so do all threads that start from here on."""

    def near(self) -> list[int | None]:
        """The NUMA node of the device of each rank on this machine, by its local number; None where it is not known."""

    def limit_memory(self, limit_bytes: int | None) -> int:
        """After ``open``: enforce the limit on what this process takes from now on; returns its capacity in bytes."""

    def is_full(self) -> bool:
        """After an error: whether libraries beside torch's allocator find next to no memory on the device."""

    def lift_limit(self) -> None:
        """After an error: remove the limit, so that the process can still write its result."""

    def keep_little(self) -> None:
        """Before the first operation of a walk: have libraries cache little, so that batches do not add up."""

    def give_back(self) -> None:
        """Return memory that is free but still held by this process to the system."""

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""

    def mark(self) -> Any:
        """Mark the end of the work that is queued by now, without waiting for it."""

    def reach(self, mark: Any) -> None:
        """Wait until the device has reached ``mark``."""

    def between_s(self, first: Any, last: Any) -> float:
        """Seconds from one mark to a later one; the device has reached both."""

    def reset_peaks(self) -> None:
        """Start a new measurement of peak memory."""

    def meters(self) -> Mapping[str, energy.Meter]:
        """What to count while steps are measured, by name: of this rank's device, or its share of what ranks use
        together."""

    def peak_bytes(self) -> int | None:
        """The peak since ``reset_peaks``, quickly read: allocated on an accelerator, resident on a CPU."""

    def memory(self, capacity_bytes: int) -> Memory:
        """Peaks since ``reset_peaks``, beside the capacity that ``limit_memory`` returned."""


def _handlers(train: Train, autocast: bool) -> list[KwargsHandler]:
    return [
        AutocastKwargs(enabled=autocast),
        DistributedDataParallelKwargs(
            find_unused_parameters=train.find_unused_parameters, bucket_cap_mb=train.bucket_mb
        ),
    ]


class Accelerated(device.Cuda):
    """One accelerator a rank, by torch's module for its kind and the process group that torch chooses for it.

    A kind whose module has the functions that are called here needs a subclass with its name, and no more.
    """

    _free_bytes = 0
    _limited = False

    def open(self, family: Family, train: Train, *, autocast: bool = False) -> Accelerator:
        if family != "deepspeed" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # accelerate has no field for the device; DeepSpeed names it. Without it, NCCL starts at the first
            # collective, on a device that torch guesses, and every new group exchanges its addresses anew.
            PartialState(timeout=COLLECTIVE_TIMEOUT, device_id=torch.device(self.kind, _local_rank()))
        group = InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)
        accelerator = Accelerator(kwargs_handlers=[*_handlers(train, autocast), group])
        # At the latest, NCCL starts here, and not in the warm-up, whose failures are the workload's.
        accelerator.wait_for_everyone()
        return accelerator

    def bind_to_cores(self) -> None:
        # accelerate's own call takes the rank for the index, which it is not where some GPUs are hidden.
        set_numa_affinity(gpus.index_of(_local_rank(), os.environ))

    def near(self) -> list[int | None]:
        return [None] * _local_ranks()

    def limit_memory(self, limit_bytes: int | None) -> int:
        # The context, NCCL, other processes and the handles of cuBLAS and cuDNN take memory that is not the attempt's.
        self._torch.set_device(_local_rank())
        _make_handles(self.kind)
        free, total = self._torch.mem_get_info()
        free += self._torch.memory_reserved()  # a workspace of cuBLAS, which the allocator's peaks will count
        self._free_bytes, self._limited = free, limit_bytes is not None
        if limit_bytes is None:
            return int(free)
        self._torch.set_per_process_memory_fraction(min(1.0, limit_bytes / total))
        return int(min(limit_bytes, free))

    def is_full(self) -> bool:
        try:
            free, _ = self._torch.mem_get_info()
        except Exception:  # no context, a broken one, a torch without CUDA: the attempt's own error must be told
            return False
        return int(free) < FULL_BYTES

    def lift_limit(self) -> None: ...

    def keep_little(self) -> None: ...

    def give_back(self) -> None:
        self._torch.empty_cache()

    def reach(self, mark: Any) -> None:
        mark.synchronize()

    def meters(self) -> Mapping[str, energy.Meter]:
        return {}

    def peak_bytes(self) -> int | None:
        return int(self._torch.max_memory_allocated())

    def memory(self, capacity_bytes: int) -> Memory:
        peaks: dict[str, Any] = self.peaks()
        return Memory(**peaks, capacity_bytes=capacity_bytes, overhead_bytes=self._overhead_bytes())

    def _overhead_bytes(self) -> int:
        """Device memory used since the start outside the allocator's blocks; a limit does not count it."""
        if self._limited:
            return 0
        free, _ = self._torch.mem_get_info()
        return max(0, self._free_bytes - int(free) - int(self._torch.memory_reserved()))


class Cuda(Accelerated):
    """A GPU of NVIDIA, with NCCL. torch gives one of AMD the same name (ROCm); nothing of bench ran on one yet."""

    kind = "cuda"

    def open(self, family: Family, train: Train, *, autocast: bool = False) -> Accelerator:
        # The launcher has run nvidia-smi for this, once, and its ranks inherit the variables that it sets.
        state.check_cuda_p2p_ib_support = lambda: True
        return super().open(family, train, autocast=autocast)

    def near(self) -> list[int | None]:
        addresses = [gpus.ask(gpu.uuid, gpus.pci_address) for gpu in gpus.visible(os.environ)]
        known = [None if address is None else numa.of_pci(address) for address in addresses[: _local_ranks()]]
        return known + [None] * (_local_ranks() - len(known))

    def meters(self) -> Mapping[str, energy.Meter]:
        return {"joules": energy.of_gpu(os.environ, _local_rank())}


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def bind_to_node(device: DeviceAdapter) -> None:
    """Run beside the device, as all threads that start from here on, where the topology of this machine is known."""
    if not hasattr(os, "sched_setaffinity"):
        return
    nodes = numa.nodes()
    bound = numa.binding(_local_rank(), device.near(), os.sched_getaffinity(0), nodes)
    if bound is not None:
        os.sched_setaffinity(0, bound.cpus)
        torch.set_num_threads(min(torch.get_num_threads(), bound.threads))


def _make_handles(kind: str) -> None:
    """Multiply, convolve and attend in this thread and in that of backward: each has handles of cuBLAS and cuDNN of its
    own, which cannot be made once a model has filled the device. cuSOLVER's are not made: no optimizer of bench needs
    them."""
    x = torch.ones(1, 8, 16, 64, device=kind, dtype=torch.bfloat16, requires_grad=True)
    attended = functional.scaled_dot_product_attention(x, x, x)
    multiplied = attended[0, 0] @ x[0, 0].mT
    picture = multiplied[None, None].float()  # cuDNN convolves bf16 only on GPUs since Ampere
    functional.conv2d(picture, torch.ones(8, 1, 2, 2, device=kind, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    getattr(torch, kind).synchronize()


class Cpu(device.Cpu):
    """Several ranks on one machine over gloo, with the same accelerate configs as on GPUs."""

    _before_bytes: int | None = None

    def open(self, family: Family, train: Train, *, autocast: bool = False) -> Accelerator:
        handlers = _handlers(train, autocast)
        if family == "deepspeed":
            # Its engine reads DS_ACCELERATOR; with cpu=True it would assume a world of one process.
            return Accelerator(
                kwargs_handlers=[*handlers, InitProcessGroupKwargs(backend="gloo", timeout=COLLECTIVE_TIMEOUT)]
            )
        process = PartialState(cpu=True, timeout=COLLECTIVE_TIMEOUT)
        if family in ("fsdp", "fsdp2"):
            # accelerate silently runs plain DDP for FSDP on MULTI_CPU.
            process._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        accelerator = Accelerator(cpu=family == "single", kwargs_handlers=handlers)
        if accelerator.mixed_precision in SCALED:  # which accelerate silently leaves out on a CPU
            accelerator.native_amp = True
            accelerator.scaler = ShardedGradScaler("cpu") if family == "fsdp" else torch.amp.GradScaler("cpu")
        return accelerator

    def bind_to_cores(self) -> None: ...

    def near(self) -> list[int | None]:
        return numa.spread(_local_ranks(), os.sched_getaffinity(0), numa.nodes())

    def limit_memory(self, limit_bytes: int | None) -> int:
        # Memory of the imports and of the process group is not the attempt's.
        self._before_bytes = status_bytes("VmData")
        if limit_bytes is None:
            return host_bytes() // _local_ranks()
        processes.map_large_blocks()
        # torch's CPU allocator raises when the data segment cannot grow.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, ((self._before_bytes or 0) + limit_bytes, hard))
        return limit_bytes

    def is_full(self) -> bool:
        return False  # a limit on the process takes its place

    def lift_limit(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

    def keep_little(self) -> None:
        # oneDNN caches a thousand primitives, about 60 MiB for each new batch of a small model; one step needs fewer.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

    def give_back(self) -> None:
        with contextlib.suppress(AttributeError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)

    def reach(self, mark: float) -> None: ...

    def meters(self) -> Mapping[str, energy.Meter]:
        return {"joules": energy.of_processors(_local_ranks())}

    def peak_bytes(self) -> int | None:
        return status_bytes("VmHWM")

    def memory(self, capacity_bytes: int) -> Memory:
        peaks: dict[str, Any] = self.peaks()
        data_bytes = peaks["peak_allocated_bytes"]
        known = data_bytes is not None and self._before_bytes is not None
        return Memory(
            **{**peaks, "peak_allocated_bytes": data_bytes - (self._before_bytes or 0) if known else None},
            capacity_bytes=capacity_bytes,
        )


DEVICE_ADAPTERS: dict[Device, type[DeviceAdapter]] = {"cuda": Cuda, "cpu": Cpu}
