"""The adapter of a GPU, with torch and accelerate in its place patched: what it asks of them, in which order."""

import os
import subprocess
from typing import Any

import pytest
import torch
from accelerate import Accelerator as Real
from accelerate import state
from examples import cell
from fake_nvml import Driver
from torch.utils._python_dispatch import TorchDispatchMode

from bench.backends import Family
from bench.machine import numa
from bench.records.cell import Train
from bench.runner import setup
from bench.runner.device import Cpu, Cuda, _make_handles, bind_to_node

GIB = 2**30


class Accelerator:
    """Asks what accelerate's own asks of a GPU when it joins the others."""

    def __init__(self, kwargs_handlers: list[object]) -> None:
        assert state.check_cuda_p2p_ib_support()

    def wait_for_everyone(self) -> None: ...


@pytest.fixture(autouse=True)
def _accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "check_cuda_p2p_ib_support", state.check_cuda_p2p_ib_support)  # restored afterwards
    monkeypatch.setattr("bench.runner.device.Accelerator", Accelerator)


def test_a_rank_does_not_run_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*command: object, **_: object) -> str:
        pytest.fail(f"ran {command}")

    monkeypatch.setattr(subprocess, "check_output", ran)
    Cuda().open("ddp", Train())


@pytest.mark.parametrize(
    ("family", "ranks", "named"),
    [
        ("ddp", 2, [torch.device("cuda", 1)]),
        ("fsdp", 2, [torch.device("cuda", 1)]),
        ("fsdp2", 2, [torch.device("cuda", 1)]),
        ("deepspeed", 2, []),  # it names the device itself
        ("ddp", 1, []),
        ("single", 1, []),
    ],
)
def test_the_process_group_is_told_its_device(
    monkeypatch: pytest.MonkeyPatch, family: Family, ranks: int, named: list[torch.device]
) -> None:
    joined: list[torch.device] = []

    def join(timeout: object, device_id: torch.device) -> None:
        assert state.check_cuda_p2p_ib_support(), "accelerate would run nvidia-smi here"
        joined.append(device_id)

    def not_replaced() -> bool:
        return False

    monkeypatch.setattr(state, "check_cuda_p2p_ib_support", not_replaced)
    monkeypatch.setattr("bench.runner.device.PartialState", join)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    Cuda().open(family, Train())
    assert joined == named


class Gpu:
    """`torch.cuda` with 80 GiB: 70 are free, and 60 once cuBLAS has its handles, of which 2 are in a workspace."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.used = 10

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object) -> Any:
            self.asked.append(name)
            return {"mem_get_info": ((80 - self.used) * GIB, 80 * GIB), "memory_reserved": 2 * GIB}.get(name)

        return answer

    def multiply(self, kind: str) -> None:
        assert kind == "cuda"
        self.asked.append("multiply")
        self.used = 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made_up = Gpu()
    monkeypatch.setattr(torch, "cuda", made_up)
    monkeypatch.setattr("bench.runner.device._make_handles", made_up.multiply)
    return made_up


def test_handles_of_cublas_are_no_part_of_capacity(gpu: Gpu) -> None:
    assert Cuda().limit_memory(None) == 62 * GIB
    assert gpu.asked == ["set_device", "multiply", "mem_get_info", "memory_reserved"]


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_handles_are_made_of_products_convolutions_and_attention_forward_and_backward() -> None:
    with Operators() as operators:
        _make_handles("cpu")
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert {"mm", "convolution", "convolution_backward", attention, f"{attention}_backward"} <= operators.seen


def test_a_rank_is_bound_to_its_node_before_the_device_and_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit follows the handles (see `gpu.asked` above), and the model follows the limit."""
    done: list[str] = []

    class Device(Cpu):
        def limit_memory(self, limit_bytes: int | None) -> int:
            done.append("limit")
            return super().limit_memory(limit_bytes)

    build = setup.build

    def built(*arguments: Any) -> Any:
        done.append("build")
        return build(*arguments)

    monkeypatch.setattr(setup, "build", built)
    monkeypatch.setattr(setup, "bind_to_node", lambda _: done.append("node"))
    monkeypatch.setattr(Device, "open", lambda *_, **__: Real(cpu=True))
    options = {"preset": "tiny", "n_layers": 1, "vision_layers": 1, "num_cams": 1, "n_obs_history": 1}
    for train in (Train(), Train(numa_binding=False)):
        setup.set_up(cell("single", options=options, num_processes=1, train=train), Device(), 2)
    assert done == ["node", "limit", "build", "limit", "build"]


@pytest.mark.parametrize(("limit", "capacity"), [(40, 40), (70, 62)])
def test_a_limit_is_a_share_of_the_whole_gpu(gpu: Gpu, limit: int, capacity: int) -> None:
    assert Cuda().limit_memory(limit * GIB) == capacity * GIB
    assert gpu.asked[-1] == "set_per_process_memory_fraction"


def test_memory_outside_the_allocator_is_what_was_taken_since(gpu: Gpu) -> None:
    cuda = Cuda()
    cuda.limit_memory(None)
    gpu.used = 23
    assert cuda._overhead_bytes() == 3 * GIB


def test_a_gpu_is_full_when_next_to_nothing_is_left(gpu: Gpu) -> None:
    assert not Cuda().is_full()
    gpu.used = 80
    assert Cuda().is_full()
    assert not Cpu().is_full()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch that has no GPU")
def test_without_a_context_nothing_is_known_of_a_gpu() -> None:
    assert not Cuda().is_full()


def test_a_gpu_marks_its_own_queue_and_the_host_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def elapsed_time(self, later: Any) -> float:
            assert later is last
            return 250.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    first, last = Cuda().mark(), Cuda().mark()
    assert calls == ["record", "record"]
    assert Cuda().between_s(first, last) == 0.25


def test_on_a_cpu_marks_are_the_time() -> None:
    device = Cpu()
    first, last = device.mark(), device.mark()
    assert device.between_s(first, last) == last - first >= 0


def test_a_rank_is_bound_to_the_cores_of_its_own_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[int] = []
    monkeypatch.setattr("bench.runner.device.set_numa_affinity", bound.append)
    monkeypatch.setenv("LOCAL_RANK", "0")
    for visible in ("1", "GPU-91bc", "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        Cuda().bind_to_cores()
    driver.monkeypatch.delenv("FAKE_NVML_GPUS")
    Cuda().bind_to_cores()
    assert bound == [1, 1, 0, 0]


def test_a_rank_runs_beside_its_gpu_where_there_are_several_nodes(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(numa, "nodes", lambda: nodes)
    monkeypatch.setattr(numa, "of_pci", {"00000000:41:00.0": 0, "00000000:C1:00.0": 1}.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    driver.reports("uuid=GPU-a mib=1 pci=00000000:41:00.0", "uuid=GPU-b mib=1 pci=00000000:C1:00.0")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        bind_to_node(Cuda())
        bind_to_node(Cpu())
    assert bound == [nodes[0], nodes[0], nodes[1], nodes[1]]
    assert threads == [2] * 4
    driver.reports("uuid=GPU-a mib=1", "uuid=GPU-b mib=1 pci=00000000:C1:00.0")  # one does not tell
    bind_to_node(Cuda())
    monkeypatch.setattr(numa, "nodes", lambda: {0: nodes[0] | nodes[1]})
    bind_to_node(Cpu())
    assert len(bound) == 4
