"""What is found of this machine, and what is not told of it."""

# ruff: noqa: N802 - the names are those of NVML

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from examples import CUDA_MACHINE, MACHINE

from bench import machine
from bench.errors import InputError
from bench.machine import cgroup
from bench.machine.gpus import Gpu
from bench.records.machine import Machine

GIB = 2**30
TWO = [Gpu("Example GPU", 80 * GIB, "GPU-8f2a11"), Gpu("Example GPU", 80 * GIB, "GPU-91bc22")]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """The GPUs that the driver reports; empty until a test adds some."""
    reported: list[Gpu] = []
    monkeypatch.setattr("bench.machine.gpus._gpus", lambda: reported)
    return reported


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, 2),
        ("0", 1),
        ("1", 1),
        ("0,1", 2),
        (" 0 , 1 ", 2),
        ("GPU-8f2a,GPU-91bc", 2),
        ("", 0),
        (" ", 0),
        ("-1", 0),
        ("0,7", 1),
        ("-1,0", 0),
        ("1,-1,0", 1),
        ("NoDevFiles", 0),
        ("0,0", 1),
    ],
)
def test_hidden_gpus_do_not_count(gpus: list[Gpu], visible: str | None, devices: int) -> None:
    gpus += TWO
    found = machine.detect({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert found.devices == devices
    assert found.device == ("cuda" if devices else "cpu")


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


def test_the_compiler_is_the_one_that_torch_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, program in (
        (None, "c++"),
        ("clang++", "clang++"),
        ("ccache g++", "ccache"),
        ("", "c++"),
        ('g++ "', 'g++ "'),
    ):
        monkeypatch.delenv("CXX", raising=False)
        if setting is not None:
            monkeypatch.setenv("CXX", setting)
        assert machine.compiler() == program


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


def test_memory_is_that_of_one_gpu_the_smallest(gpus: list[Gpu]) -> None:
    gpus += [Gpu("Big", 80 * GIB, "GPU-a"), Gpu("Small", 40 * GIB, "GPU-b")]
    assert machine.detect({}).memory_bytes == 40 * GIB


def test_without_a_gpu_it_is_the_host(gpus: list[Gpu]) -> None:
    found = machine.detect({"CUDA_VISIBLE_DEVICES": "0"})
    assert (found.device, found.devices) == ("cpu", 0)
    assert found.memory_bytes > 2**28
    assert 1 <= found.cores <= (os.cpu_count() or 1)


def test_cores_are_those_that_this_process_may_use(gpus: list[Gpu]) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.detect({}).cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


V2 = ("0::/job/step\n", "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
V1 = (
    "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
    "28 23 0:25 / /mnt rw - tmpfs  rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
)
UNLIMITED = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("group", "files", "cores", "memory_bytes"),
    [
        (V2, {"job/step/cpu.max": "150000 100000\n", "job/step/memory.max": f"{GIB}\n"}, 2, GIB),
        (V2, {"job/step/cpu.max": "50000 100000\n", "job/step/memory.max": "max\n"}, 1, None),
        (V2, {"job/step/cpu.max": "max 100000\n", "job/cpu.max": "300000 100000\n", "memory.max": f"{GIB}"}, 3, GIB),
        (V2, {"job/step/memory.max": f"{4 * GIB}\n", "job/memory.max": f"{2 * GIB}\n"}, None, 2 * GIB),
        (
            V1,
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "200000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "memory/job/memory.limit_in_bytes": f"{GIB}\n",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            2,
            GIB,
        ),
        (V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, None, None),
        (("", ""), {}, None, None),
    ],
)
def test_what_the_control_group_grants(
    tmp_path: Path, group: tuple[str, str], files: dict[str, str], cores: int | None, memory_bytes: int | None
) -> None:
    control_group(tmp_path, group, files)
    assert cgroup.cores(tmp_path) == cores
    assert cgroup.memory_bytes(tmp_path) == memory_bytes


def control_group(root: Path, group: tuple[str, str], files: dict[str, str]) -> None:
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": group[0], "proc/self/mountinfo": group[1], **named}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_host_of_which_less_is_granted_is_that_much(gpus: list[Gpu], tmp_path: Path) -> None:
    whole = machine.detect({}, tmp_path)
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000 100000\n", "job/step/memory.max": f"{2**26}\n"})
    assert machine.detect({}, tmp_path) == whole.model_copy(update={"cores": 1, "memory_bytes": 2**26})
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000000 100000\n", "job/step/memory.max": UNLIMITED})
    assert machine.detect({}, tmp_path) == whole


def test_a_gpu_s_memory_is_no_control_group_s(gpus: list[Gpu], tmp_path: Path) -> None:
    gpus += TWO
    control_group(tmp_path, V2, {"job/step/cpu.max": "100000 100000\n", "job/step/memory.max": f"{2**26}\n"})
    found = machine.detect({}, tmp_path)
    assert (found.cores, found.memory_bytes) == (1, 80 * GIB)


def test_the_record_holds_nothing_of_the_environment_but_named_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "HF_TOKEN": "hf_planted_secret_1",
        "WANDB_API_KEY": "planted_secret_2",
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "planted_secret_5",
        "USER": "planted_user_3",
        "HOSTNAME": "planted_host_4",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    record = machine.record(machine.detect())
    assert "planted" not in record.model_dump_json()
    assert record.threads["OMP_NUM_THREADS"] == "3"
    assert record.threads == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "unreadable"}
    assert os.uname().nodename not in {record.system, record.cpu}


@pytest.mark.parametrize(
    ("environment", "allocator"),
    [
        ({}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        ({"PYTORCH_ALLOC_CONF": "a:1,b:[256:1,>:4]", "PYTORCH_CUDA_ALLOC_CONF": "c:0.5"}, "a:1,b:[256:1,>:4]"),
        ({"PYTORCH_ALLOC_CONF": "planted_secret"}, "unreadable"),
    ],
)
def test_the_allocator_in_force_is_recorded(environment: dict[str, str], allocator: str | None) -> None:
    assert machine.record(CUDA_MACHINE.hardware, environment).allocator == allocator
    assert machine.record(MACHINE.hardware, environment).allocator is None


def test_the_record_names_versions_and_survives_json() -> None:
    record = machine.record(machine.detect(), {})
    assert {"torch", "accelerate", "deepspeed", "transformers"} <= set(record.libraries)
    assert Machine.model_validate_json(record.model_dump_json()) == record


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv("GIT_DIR", raising=False)
    record = machine.record(MACHINE.hardware, {})
    assert (record.git_commit, record.git_dirty) == (None, None)


@pytest.mark.parametrize(
    ("change", "unlike"),
    [
        ({}, []),
        ({"git_commit": "f" * 40, "git_dirty": False, "bench": "9.9.9", "python": "3.13.0", "system": "Other"}, []),
        ({"cpu": "Other CPU"}, ["cpu: Example CPU against Other CPU"]),
        (
            {"libraries": {"torch": "1.2.3"}},
            ["libraries: torch 1.2.3, accelerate 4.5.6 against torch 1.2.3"],
        ),
        ({"threads": {}, "driver": "2"}, ["driver: n/a against 2", "threads: OMP_NUM_THREADS 4 against none"]),
        ({"allocator": "x"}, ["allocator: n/a against x"]),
    ],
)
def test_unlike_names_the_fields_that_change_measurements(change: dict[str, object], unlike: list[str]) -> None:
    assert MACHINE.unlike(MACHINE.model_copy(update=change)) == unlike


def test_more_gpus_are_unlike() -> None:
    fewer = CUDA_MACHINE.model_copy(update={"hardware": CUDA_MACHINE.hardware.model_copy(update={"devices": 1})})
    assert [line.partition(":")[0] for line in CUDA_MACHINE.unlike(fewer)] == ["hardware"]


def test_a_cpu_is_told_to_the_user_and_so_is_the_allocator() -> None:
    assert "over gloo" in machine.notes(MACHINE)[0]
    assert machine.notes(CUDA_MACHINE) == ["CUDA allocator: expandable_segments:True"]


def test_the_visible_gpu_is_the_one_recorded(gpus: list[Gpu]) -> None:
    gpus += [Gpu("A", 80 * GIB, "GPU-a"), Gpu("B", 40 * GIB, "GPU-b")]
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "0"}).memory_bytes == 80 * GIB
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    assert machine.record(machine.detect(environment), environment).accelerators == ("B",)
