"""GPUs as NVML reports them, over a made-up driver, and those that CUDA would show."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pynvml
import pytest
from fake_nvml import TWO, Driver

from bench import machine
from bench.errors import InputError
from bench.machine import gpus
from bench.records.machine import Machine

GIB = 2**30
SLICES = ("uuid=MIG-a1 mib=10240", "uuid=MIG-a2 mib=20480")
SPLIT = ("uuid=GPU-a mib=81920 mig=1", "uuid=GPU-b mib=81920", *SLICES)
WHOLE = ("uuid=GPU-a mib=81920 mig=0", "uuid=GPU-b mib=81920", *SLICES)


@pytest.fixture(autouse=True)
def _closed_afterwards(driver: Driver) -> Iterator[None]:
    yield
    with pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlShutdown()


@pytest.mark.parametrize(
    ("visible", "devices"), [(None, 2), ("1", 1), ("GPU-91bc", 1), ("GPU-91bc,0", 2), ("", 0), ("-1,0", 0)]
)
def test_the_visible_gpus_are_detected(driver: Driver, visible: str | None, devices: int) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = machine.detect(environment)
    assert (found.device, found.devices) == ("cuda" if devices else "cpu", devices)
    if devices:
        assert found.memory_bytes == 80 * GIB
    record = machine.record(found, environment)
    assert record.accelerators == ("Example GPU",) * devices
    assert record.driver == (None if visible == "" else "580.65.06")


def test_machines_whose_gpus_have_other_power_limits_are_unlike(driver: Driver) -> None:
    def recorded(*limits: str) -> Machine:
        driver.reports(*(f"uuid=GPU-{index} mib=81920{limit}" for index, limit in enumerate(limits)))
        return machine.record(machine.detect({}), {})

    full, capped, silent = recorded(" limit_mw=700000"), recorded(" limit_mw=350000"), recorded("")
    assert (full.power_limits_w, capped.power_limits_w, silent.power_limits_w) == ((700,), (350,), (None,))
    assert full.unlike(capped) == ["power_limits_w: 700.0 against 350.0"]
    earlier = full.model_copy(update={"power_limits_w": ()})
    assert [full.unlike(other) for other in (full, silent, earlier)] == [[], [], []]


@pytest.mark.parametrize(("capability", "bf16"), [(" capability=7", False), (" capability=8", True), ("", True)])
def test_gpus_before_ampere_have_no_bf16(driver: Driver, capability: str, bf16: bool) -> None:
    """torch emulates it there, and calls it supported."""
    driver.reports("uuid=GPU-a mib=81920 capability=9", f"uuid=GPU-b mib=16384{capability}")
    found = machine.detect({})
    assert found.bf16 == bf16
    assert any("fp16 is for such GPUs" in note for note in machine.notes(machine.record(found, {}))) != bf16


@pytest.mark.parametrize(
    ("named", "devices", "memory_bytes"),
    [("MIG-a2", 1, 20 * GIB), (" MIG-a1 ,MIG-a2", 1, 10 * GIB), ("0", 1, 80 * GIB)],
)
def test_a_slice_of_a_gpu_is_a_gpu(driver: Driver, named: str, devices: int, memory_bytes: int) -> None:
    driver.reports(*WHOLE)
    found = machine.detect({"CUDA_VISIBLE_DEVICES": named})
    assert (found.device, found.devices, found.memory_bytes) == ("cuda", devices, memory_bytes)


def test_a_slice_that_is_not_there_is_said(driver: Driver) -> None:
    driver.reports(*SPLIT)
    with pytest.raises(
        InputError, match="CUDA_VISIBLE_DEVICES: 'MIG-a9': this slice does not respond: Not Found"
    ) as said:
        machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a9"})
    assert said.value.fix


@pytest.mark.parametrize("named", [None, "0", "GPU-a,GPU-b"])
def test_a_gpu_that_is_split_is_not_taken_for_a_whole_one(driver: Driver, named: str | None) -> None:
    driver.reports(*SPLIT)
    with pytest.raises(InputError, match="GPU 0 is split into slices") as said:
        machine.detect({} if named is None else {"CUDA_VISIBLE_DEVICES": named})
    assert "name one slice in CUDA_VISIBLE_DEVICES" in said.value.fix
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "1"}).memory_bytes == 80 * GIB
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a2"}).memory_bytes == 20 * GIB


def test_each_fault_has_its_fix(driver: Driver) -> None:
    driver.reports(SPLIT[0], "uuid=GPU-b lost=1")
    with pytest.raises(InputError, match=r"GPU 0 is split into slices .*; GPU 1 does not respond") as said:
        machine.detect({})
    assert "nvidia-smi -L lists them; reset it" in said.value.fix


def test_a_gpu_that_shares_the_host_s_memory_has_all_of_it(driver: Driver) -> None:
    driver.reports("uuid=GPU-a")
    assert machine.detect({}).memory_bytes == psutil.virtual_memory().total


def test_a_lost_gpu_is_named_unless_it_is_left_out(driver: Driver) -> None:
    driver.reports(TWO[0], "uuid=GPU-91bc22 lost=1")
    with pytest.raises(InputError, match="GPU 1 does not respond: GPU is lost"):
        machine.detect({})
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "0"}).devices == 1


def test_without_a_driver_a_slice_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "MIG-a1"}).device == "cpu"
    assert machine.record(machine.detect({}), {}).driver is None


def test_a_driver_that_does_not_respond_is_no_machine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    with pytest.raises(InputError, match="does not respond: RM has detected an NVML/RM version mismatch") as said:
        machine.detect({})
    assert "CUDA_VISIBLE_DEVICES= to measure on the CPU" in str(said.value)
    assert gpus.ask("GPU-a", gpus.used_bytes) is None
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    assert machine.record(machine.detect(hidden), hidden).driver is None


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("GPU-91bc22,GPU-8f2a11", "1,0"),
        (" GPU-91bc , 0", "1,0"),
        ("GPU-91bc22,GPU-0,GPU-8f2a11", "1"),
    ],
)
def test_uuids_become_indices(driver: Driver, visible: str, indices: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": visible}
    translated = gpus.by_index(environment)
    assert translated == {"CUDA_VISIBLE_DEVICES": indices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert machine.detect(translated) == machine.detect(environment)


@pytest.mark.parametrize("visible", [None, "", "1,0", "GPU-0", "MIG-a1", "MIG-GPU-91bc22/1/0"])
def test_what_names_no_whole_gpu_by_uuid_stays_as_it_is(driver: Driver, visible: str | None) -> None:
    assert gpus.by_index({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == {}


def test_the_index_of_a_gpu_is_that_of_the_driver_and_a_slice_has_that_of_its_gpu(driver: Driver) -> None:
    assert gpus.index_of(0, {"CUDA_VISIBLE_DEVICES": "1,0"}) == 1
    driver.reports("uuid=GPU-a mib=81920", "uuid=GPU-b mib=81920 mig=1", "uuid=MIG-b1 mib=10240 of=1")
    assert gpus.index_of(0, {"CUDA_VISIBLE_DEVICES": " MIG-b1"}) == 1


def counted_in_child(fork: Callable[[], int]) -> int:
    """How many GPUs NVML reports in a forked child; 99 for an error."""
    child = fork()
    if child == 0:
        try:
            os._exit(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_nvml_opened_anew(driver: Driver) -> None:
    pynvml.nvmlInit()  # as DeepSpeed
    ctypes.CDLL("libnvidia-ml.so.1").nvmlInit()  # as torch
    assert counted_in_child(os.fork) == 99
    assert counted_in_child(gpus.fork) == 2
    assert counted_in_child(gpus.fork) == 2
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    pynvml.nvmlShutdown()


def test_a_child_opens_no_nvml_that_its_parent_had_not(driver: Driver) -> None:
    assert counted_in_child(gpus.fork) == 99


CUDA = """static int known; int cuInit(unsigned f) { known = 1; return f; }
int cuDeviceGetCount(int *n) { *n = 2; return known ? 0 : 3; }"""


def test_whether_cuda_is_initialized_is_asked_of_its_library(driver: Driver, tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), "-xc", "-"]
    subprocess.run(command, input=CUDA, text=True, check=True)
    assert not gpus.initialized()  # not loaded
    child = os.fork()
    if child == 0:  # this process stays without it
        cuda = ctypes.CDLL(str(library))
        before = gpus.initialized()
        cuda.cuInit(0)
        os._exit(10 * before + gpus.initialized())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
