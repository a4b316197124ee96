"""The GPUs of this machine as its driver reports them (NVML), and those that CUDA would show."""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psutil
import pynvml

from bench.errors import InputError

T = TypeVar("T")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_GPU_NOT_FOUND)


class Gpu(NamedTuple):
    """A GPU, or a slice of one (MIG)."""

    name: str
    memory_bytes: int
    uuid: str
    fault: str | None = None
    """Which GPU it is and why it cannot be used; None if it can."""
    fix: str | None = None
    bf16: bool = True
    """Whether it multiplies in bf16, as those of compute capability 8.0 and above do. torch emulates it on others."""


def visible(environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that CUDA would show to a process with this environment.

    Raises:
        InputError: the driver or a GPU does not respond, a GPU is split into slices, or a slice does not exist.
    """
    setting = environment.get(_VISIBLE)
    if _hides_all(environment):
        return []
    if setting is not None and setting.strip().startswith("MIG-"):
        return _slices(setting)
    shown = _visible(_gpus(), setting)
    if faults := [gpu.fault for gpu in shown if gpu.fault]:
        fixes = dict.fromkeys(gpu.fix for gpu in shown if gpu.fault and gpu.fix)
        raise InputError("; ".join(faults), fix="; ".join(fixes))
    return shown


def by_index(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that name the GPUs by index where CUDA_VISIBLE_DEVICES names them by UUID; else none.

    DeepSpeed takes each entry for a number (``_get_nvml_gpu_id`` in its cuda_accelerator.py). A slice has no index.
    """
    setting = environment.get(_VISIBLE, "")
    if not any(entry.strip().startswith("GPU-") for entry in setting.split(",")):
        return {}
    gpus = _gpus()
    indices = [str(gpus.index(gpu)) for gpu in _visible(gpus, setting)]
    return {_VISIBLE: ",".join(indices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if indices else {}  # NVML's order


def index_of(rank: int, environment: Mapping[str, str]) -> int:
    """NVML's index of the GPU that CUDA shows as number ``rank``; ``rank`` itself without a driver.

    Of a slice, the index of its GPU.
    """
    gpus, setting = _gpus(), environment.get(_VISIBLE, "").strip()
    if not gpus:
        return rank
    if setting.startswith("MIG-"):
        return [gpu.uuid for gpu in gpus].index(_uuid_of_whole(setting.split(",")[rank].strip()))
    return gpus.index(_visible(gpus, environment.get(_VISIBLE))[rank])


def power_limits_w(environment: Mapping[str, str]) -> tuple[float | None, ...]:
    """The power limit in force of each visible GPU, in watts; None for one that does not tell."""
    limits = (
        ask(gpu.uuid, lambda handle: int(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)))
        for gpu in visible(environment)
    )
    return tuple(None if limit is None else limit / 1000 for limit in limits)


def ask(uuid: str, question: Callable[[Any], T]) -> T | None:
    """The answer of one GPU to a question about its NVML handle; None where there is none."""
    try:
        with _nvml() as available:
            return question(pynvml.nvmlDeviceGetHandleByUUID(uuid)) if available else None
    except (pynvml.NVMLError, InputError):
        return None


def pci_address(handle: Any) -> str:
    """Such as ``00000000:41:00.0``."""
    address = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return address.decode() if isinstance(address, bytes) else str(address)


def used_bytes(handle: Any) -> int:
    """Memory in use, without what the driver reserves for itself, which the first version of the question counts."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)


def driver(environment: Mapping[str, str]) -> str | None:
    """The version of the driver; None without a driver, and where all GPUs are hidden."""
    if _hides_all(environment):
        return None
    with _nvml() as available:
        return str(pynvml.nvmlSystemGetDriverVersion()) if available else None


def newest_cuda() -> str | None:
    """The newest version of CUDA that the driver runs, such as ``12.4``; None without a driver."""
    with _nvml() as available:
        if not available:
            return None
        thousands = int(pynvml.nvmlSystemGetCudaDriverVersion())
    return f"{thousands // 1000}.{thousands % 1000 // 10}"


def fork() -> int:
    """As `os.fork`, with NVML closed meanwhile: parent and child then each open it as often as it was open.

    DeepSpeed and torch open NVML when they are imported. A child may not use what its parent has opened.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1", mode=os.RTLD_NOLOAD)
    except OSError:  # nothing has loaded it
        return os.fork()
    times = 0
    while nvml.nvmlShutdown() == 0:
        times += 1
    child = os.fork()
    for _ in range(times):
        nvml.nvmlInit_v2()
    return child


def initialized() -> bool:
    """Whether any library has initialized CUDA in this process. Asking does not initialize it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:  # nothing has loaded it
        return False
    # Anything but CUDA_SUCCESS: not initialized (3), or without use, as the stub is that comes with the toolkit (34).
    return bool(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def _hides_all(environment: Mapping[str, str]) -> bool:
    """Whether the user measures on the CPU: the driver is then not asked, and may be broken."""
    return not environment.get(_VISIBLE, "all").strip()


def _visible(gpus: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """The GPUs that CUDA would show: it stops at the first entry that names no GPU, or the same GPU again."""
    if setting is None:
        return list(gpus)
    shown: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        by_uuid = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        gpu = gpus[int(entry)] if entry.isdecimal() and int(entry) < len(gpus) else next(iter(by_uuid), None)
        if gpu is None or gpu in shown:
            break
        shown.append(gpu)
    return shown


def _slices(setting: str) -> list[Gpu]:
    """The first slice only: CUDA shows a process at most one."""
    with _nvml() as available:
        if not available:
            return []
        entry = setting.split(",", maxsplit=1)[0].strip()
        gpu = _gpu("this slice", pynvml.nvmlDeviceGetHandleByUUID, entry)
    if gpu.fault:
        raise InputError(
            f"{setting!r}: {gpu.fault}", where="environment", field=_VISIBLE, fix="nvidia-smi -L lists all slices"
        )
    return [gpu]


def _uuid_of_whole(slice_uuid: str) -> str:
    with _nvml():
        part = pynvml.nvmlDeviceGetHandleByUUID(slice_uuid)
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)))


def _gpus() -> list[Gpu]:
    """All GPUs that the driver reports; none without a driver."""
    with _nvml() as available:
        if not available:
            return []
        count = pynvml.nvmlDeviceGetCount()
        gpus = [_gpu(f"GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        return [_unless_split(index, gpu) for index, gpu in enumerate(gpus)]


def _unless_split(index: int, gpu: Gpu) -> Gpu:
    """The GPU, with a fault if it is split: CUDA would show one of its slices, which has less memory."""
    try:
        now, _ = pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return gpu  # it does not support slices, or does not respond
    if now != pynvml.NVML_DEVICE_MIG_ENABLE:
        return gpu
    fix = f"name one slice in {_VISIBLE}, or hide this GPU: nvidia-smi -L lists them"
    return gpu._replace(fault=f"GPU {index} is split into slices (MIG)", fix=fix)


def _gpu(label: str, find: Callable[[T], Any], key: T) -> Gpu:
    try:
        handle = find(key)
        name, uuid = str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle))
        return Gpu(name, _memory_bytes(handle), uuid, bf16=_multiplies_bf16(handle))
    except pynvml.NVMLError as error:
        fix = f"reset it, or leave it out with {_VISIBLE}"
        return Gpu("", 0, "", fault=f"{label} does not respond: {error}", fix=fix)


def _memory_bytes(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return psutil.virtual_memory().total  # it shares the memory of the host


def _multiplies_bf16(handle: Any) -> bool:
    try:
        major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError:
        return True  # a slice may not tell, and all GPUs that can be split have bf16
    return bool(major >= 8)


@contextmanager
def _nvml() -> Iterator[bool]:
    """Opens NVML. Yields whether it is available, that is, whether there is a driver.

    Raises:
        InputError: there is one, and it does not respond.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value not in _NO_DRIVER:
            raise InputError(
                f"the driver of the GPUs does not respond: {error}",
                fix=f"reboot or restart the container, or set {_VISIBLE}= to measure on the CPU",
            ) from error
        available = False
    else:
        available = True
    try:
        yield available
    finally:
        if available:
            pynvml.nvmlShutdown()
