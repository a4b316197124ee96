"""On a GPU, a host without memory is no limit of the batch."""

from typing import get_args

import pytest

from bench.diagnosis.host_memory import HOST, told_apart
from bench.diagnosis.oom_words import Kind
from bench.records.outcome import Failed, Hang, Oom

DEVICE = ("cuda_allocator", "cuda_driver", "cublas", "cudnn", "cuda_library", "nccl")


def test_every_source_is_of_the_host_or_of_the_gpu() -> None:
    assert {*get_args(Kind), "kernel", "abort", "loader"} == {*HOST, *DEVICE}


@pytest.mark.parametrize("source", HOST)
def test_the_host_of_a_gpu_fails_and_a_cpu_is_full(source: str) -> None:
    full = Oom(rank=1, phase="setup", reason="killed by SIGKILL: the kernel", source=source)
    assert told_apart(full, apart=False) == full
    assert told_apart(full, apart=True) == Failed(
        fault="host_memory",
        rank=1,
        phase="setup",
        reason="the memory of the host ran out, not that of the GPU: killed by SIGKILL: the kernel",
    )


@pytest.mark.parametrize("source", [*DEVICE, "cuda_abort", None])
def test_a_full_gpu_is_full(source: str | None) -> None:
    full = Oom(rank=1, phase="warmup", reason="CUDA out of memory", source=source)
    assert told_apart(full, apart=True) == full


def test_other_outcomes_stay() -> None:
    assert told_apart(Hang(reason="time is up"), apart=True) == Hang(reason="time is up")
