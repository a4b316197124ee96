"""The GPUs of this machine as its driver knows them (NVML), and those of them that CUDA would show."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psutil

from bench.errors import InputError

T = TypeVar("T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """A whole one, or a slice of one (MIG)."""

    name: str
    memory_bytes: int
    uuid: str
    fault: str | None = None
    """Which one it is and why it cannot be used, where it cannot."""
    fix: str | None = None


def visible(environment: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA would show to a process with this environment.

    Raises:
        InputError: one of them does not answer or is split into slices, or there is no such slice.
    """
    named = environment.get(_VISIBLE)
    if named is not None and named.strip().startswith("MIG-"):
        return _slices(named)
    shown = _visible(_gpus(), named)
    if faults := [gpu.fault for gpu in shown if gpu.fault]:
        fixes = dict.fromkeys(gpu.fix for gpu in shown if gpu.fault and gpu.fix)
        raise InputError("; ".join(faults), fix="; ".join(fixes))
    return shown


def driver() -> str | None:
    """Its version; None without a driver."""
    import pynvml

    with _asking() as there:
        return str(pynvml.nvmlSystemGetDriverVersion()) if there else None


def _visible(gpus: Sequence[Gpu], named: str | None) -> list[Gpu]:
    """Those that CUDA would show: it stops at the first entry that names none, or one again."""
    if named is None:
        return list(gpus)
    shown: list[Gpu] = []
    for entry in (part.strip() for part in named.split(",")):
        by_uuid = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        found = gpus[int(entry)] if entry.isdecimal() and int(entry) < len(gpus) else next(iter(by_uuid), None)
        if found is None or found in shown:
            break
        shown.append(found)
    return shown


def _slices(named: str) -> list[Gpu]:
    """The first one alone: CUDA shows a process no more than one slice."""
    import pynvml

    with _asking() as there:
        if not there:
            return []
        entry = named.split(",", maxsplit=1)[0].strip()
        found = _gpu("this slice", pynvml.nvmlDeviceGetHandleByUUID, entry)
    if found.fault:
        raise InputError(
            f"{named!r}: {found.fault}", where="environment", field=_VISIBLE, fix="nvidia-smi -L lists what there is"
        )
    return [found]


def _gpus() -> list[Gpu]:
    """Every GPU that the driver knows; empty without a driver."""
    import pynvml

    with _asking() as there:
        if not there:
            return []
        count = pynvml.nvmlDeviceGetCount()
        gpus = [_gpu(f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        return [_unless_split(index, gpu) for index, gpu in enumerate(gpus)]


def _unless_split(index: int, gpu: Gpu) -> Gpu:
    """CUDA would show one slice of it, which does not have the memory of the whole."""
    import pynvml

    try:
        now, _ = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return gpu  # it knows no slices, or does not answer
    if now != pynvml.NVML_DEVICE_MIG_ENABLE:
        return gpu
    fix = f"name one of them in {_VISIBLE}, or hide this GPU: nvidia-smi -L lists them"
    return gpu._replace(fault=f"GPU {index} is split into slices (MIG)", fix=fix)


def _gpu(label: str, find: Callable[[T], Any], key: T) -> Gpu:
    import pynvml

    try:
        gpu = find(key)
        return Gpu(str(pynvml.nvmlDeviceGetName(gpu)), _memory_bytes(gpu), str(pynvml.nvmlDeviceGetUUID(gpu)))
    except pynvml.NVMLError as error:
        fix = f"reset it, or leave it out with {_VISIBLE}"
        return Gpu("", 0, "", fault=f"{label} does not answer: {error}", fix=fix)


def _memory_bytes(gpu: Any) -> int:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(gpu).total)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return psutil.virtual_memory().total  # it has none of its own


@contextmanager
def _asking() -> Iterator[bool]:
    """Whether there is a driver to ask, meanwhile."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        there = False
    else:
        there = True
    try:
        yield there
    finally:
        if there:
            pynvml.nvmlShutdown()
