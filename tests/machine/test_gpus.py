"""GPUs as NVML reports them, and those that CUDA would show."""

# ruff: noqa: N802 - the names are those of NVML

import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from bench import machine
from bench.errors import InputError

GIB = 2**30


class Nvml:
    """Two GPUs, and slices that can be named. A GPU's handle is its UUID."""

    NVMLError, NVML_ERROR_NOT_SUPPORTED = pynvml.NVMLError, pynvml.NVML_ERROR_NOT_SUPPORTED
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    split: str | None = None
    """The GPU that is in MIG mode; the others know no such mode."""
    memory_bytes: dict[str, int]
    errors: dict[str, int]
    """What the driver says in place of an answer, by the handle."""

    def __init__(self) -> None:
        self.memory_bytes = {"GPU-a": 80 * GIB, "GPU-b": 80 * GIB, "MIG-a1": 10 * GIB, "MIG-a2": 20 * GIB}
        self.errors = {}
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return ("GPU-a", "GPU-b")[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.memory_bytes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetMigMode(self, gpu: str) -> tuple[int, int]:
        if gpu != self.split:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.NVML_DEVICE_MIG_ENABLE, self.NVML_DEVICE_MIG_ENABLE

    def nvmlDeviceGetMemoryInfo(self, gpu: str) -> Any:
        if gpu in self.errors:
            raise pynvml.NVMLError(self.errors[gpu])
        return SimpleNamespace(total=self.memory_bytes[gpu])

    def nvmlDeviceGetName(self, gpu: str) -> str:
        return f"Example {gpu}"

    def nvmlDeviceGetUUID(self, gpu: str) -> str:
        return gpu


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    driver = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


@pytest.mark.parametrize(
    ("named", "devices", "memory_bytes"),
    [("MIG-a2", 1, 20 * GIB), (" MIG-a1 ,MIG-a2", 1, 10 * GIB), ("0", 1, 80 * GIB)],
)
def test_a_slice_of_a_gpu_is_a_gpu(nvml: Nvml, named: str, devices: int, memory_bytes: int) -> None:
    found = machine.detect({"CUDA_VISIBLE_DEVICES": named})
    assert (found.device, found.devices, found.memory_bytes) == ("cuda", devices, memory_bytes)
    assert nvml.open == 0


def test_a_slice_that_is_not_there_is_said(nvml: Nvml) -> None:
    with pytest.raises(
        InputError, match="CUDA_VISIBLE_DEVICES: 'MIG-a9': this slice does not respond: Not Found"
    ) as said:
        machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a9"})
    assert said.value.fix
    assert nvml.open == 0


@pytest.mark.parametrize("named", [None, "0", "GPU-a,GPU-b"])
def test_a_gpu_that_is_split_is_not_taken_for_a_whole_one(nvml: Nvml, named: str | None) -> None:
    nvml.split = "GPU-a"
    with pytest.raises(InputError, match="GPU 0 is split into slices") as said:
        machine.detect({} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    assert said.value.fix is not None
    assert "name one slice in CUDA_VISIBLE_DEVICES" in said.value.fix
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "1"}).memory_bytes == 80 * GIB
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a2"}).memory_bytes == 20 * GIB


def test_each_fault_has_its_fix(nvml: Nvml) -> None:
    nvml.split, nvml.errors = "GPU-a", {"GPU-b": pynvml.NVML_ERROR_GPU_IS_LOST}
    with pytest.raises(InputError, match=r"GPU 0 is split into slices .*; GPU 1 does not respond") as said:
        machine.detect({})
    assert said.value.fix is not None
    assert "nvidia-smi -L lists them; reset it" in said.value.fix


def test_without_a_driver_a_slice_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a1"}).device == "cpu"
    assert machine.record(machine.detect({}), {}).driver is None


def test_a_gpu_that_shares_the_host_s_memory_has_all_of_it(nvml: Nvml) -> None:
    nvml.errors = dict.fromkeys(("GPU-a", "GPU-b"), pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert machine.detect({}).memory_bytes == psutil.virtual_memory().total


def test_a_lost_gpu_is_named_unless_it_is_left_out(nvml: Nvml) -> None:
    nvml.errors = {"GPU-b": pynvml.NVML_ERROR_GPU_IS_LOST}
    with pytest.raises(InputError, match="GPU 1 does not respond: GPU is lost"):
        machine.detect({})
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "0"}).devices == 1
    assert nvml.open == 0
