"""What is found of this machine, and what is not told of it."""

import os
from pathlib import Path

import psutil
import pytest
from examples import CUDA_MACHINE, MACHINE

from bench import machine
from bench.machine import hardware
from bench.machine.gpus import Gpu
from bench.records.machine import Hardware, Machine

GIB = 2**30
TWO = [Gpu("Example GPU", 80 * GIB, "GPU-8f2a11"), Gpu("Example GPU", 80 * GIB, "GPU-91bc22")]


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


def test_memory_is_that_of_one_gpu_the_smallest(gpus: list[Gpu]) -> None:
    gpus += [Gpu("Big", 80 * GIB, "GPU-a"), Gpu("Small", 40 * GIB, "GPU-b")]
    assert machine.detect({}).memory_bytes == 40 * GIB


def test_without_a_gpu_it_is_the_host(gpus: list[Gpu]) -> None:
    found = machine.detect({"CUDA_VISIBLE_DEVICES": "0"})
    assert (found.device, found.devices) == ("cpu", 0)
    assert found.memory_bytes > 2**28
    assert 1 <= found.cores <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("features", "environment", "expected"),
    [
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", {}, True),
        ("fpu avx2 avx512f avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "avx512_core_bf16"}, True),
        ("fp asimd bf16", {}, True),
        ("fpu avx2 avx512f", {}, False),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        ("fpu avx2 avx512f avx512_bf16 amx_bf16", {"DNNL_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, False),
        ("", {}, False),
    ],
)
def test_bf16_needs_instructions_that_onednn_may_use(
    features: str, environment: dict[str, str], expected: bool
) -> None:
    assert hardware.multiplies_bf16(features, environment) == expected


def test_a_cpu_without_bf16_instructions_is_told_to_the_user() -> None:
    without = MACHINE.model_copy(update={"hardware": MACHINE.hardware.model_copy(update={"bf16": False})})
    assert "mixed_precision is 'no' unless you set it" in machine.notes(without)[1]
    assert not any("bf16" in note for note in machine.notes(MACHINE))


def test_cores_are_those_that_this_process_may_use(gpus: list[Gpu]) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.detect({}).cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


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


def test_another_environment_is_a_difference_and_no_other_machine() -> None:
    one = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Ring", "MALLOC_ARENA_MAX": "2"}})
    other = MACHINE.model_copy(update={"environment": {"MALLOC_ARENA_MAX": "4"}, "python": "3.12.1"})
    assert one.unlike(other) == []
    assert one.differences(other) == [
        "python: 3.11.0 against 3.12.1",
        "NCCL_ALGO: Ring against not set",
        "MALLOC_ARENA_MAX: 2 against 4",
    ]
    assert MACHINE.differences(one) == []  # not known is no difference


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


def test_where_git_cannot_tell_of_changes_they_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_git", lambda command, *_: "f" * 40 if command == "rev-parse" else None)
    assert machine.record(MACHINE.hardware, {}).git_dirty is None


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


@pytest.mark.parametrize(("torch", "says"), [("2.13.0+rocm6.4", "AMD"), ("2.13.0+xpu", "Intel"), ("2.13.0+cpu", None)])
def test_a_build_of_torch_for_devices_that_nothing_ran_on_is_said(torch: str, says: str | None) -> None:
    first = machine.notes(MACHINE.model_copy(update={"libraries": {"torch": torch}}))[0]
    assert (f"torch is built for GPUs of {says}: nothing of bench" in first) == (says is not None)


def test_the_visible_gpu_is_the_one_recorded(gpus: list[Gpu]) -> None:
    gpus += [Gpu("A", 80 * GIB, "GPU-a"), Gpu("B", 40 * GIB, "GPU-b")]
    assert machine.detect({"CUDA_VISIBLE_DEVICES": "0"}).memory_bytes == 80 * GIB
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    assert machine.record(machine.detect(environment), environment).accelerators == ("B",)


def test_a_gpu_with_all_of_the_host_s_memory_has_none_of_its_own() -> None:
    own = Hardware(device="cuda", devices=1, cores=1, memory_bytes=80 * GIB)
    assert machine.has_own_memory(own)
    assert not machine.has_own_memory(own.model_copy(update={"memory_bytes": psutil.virtual_memory().total}))
    assert not machine.has_own_memory(own.model_copy(update={"device": "cpu"}))
