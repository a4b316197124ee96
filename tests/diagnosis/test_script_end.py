"""Why a script gave no figures, from real ends of logs."""

import pytest

from bench.diagnosis.script_end import failure
from bench.records.outcome import Failed, Hang
from bench.records.script import ScriptEnd

TORCHRUN = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: {error}
[rank1]: Traceback (most recent call last):
[rank1]: torch.distributed.DistBackendError: Connection closed by peer
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=====
train.py FAILED
"""
ALLOCATOR = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
ABORT = "terminate called after throwing an instance of 'std::bad_alloc'\n"
LOST = "epoch 1\nterminate called without an active exception\nE1125 torch/distributed/elastic: failed (exitcode: -6)\n"
THROWN = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail]\nE1125 failed\n"
)
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of"


def end(log: str = "", how: str | None = "exit code 1", **known: object) -> ScriptEnd:
    return ScriptEnd(how=how, log=log, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "source"),
    [
        (end(TORCHRUN.format(error=CUDA), rank=0), "cuda_allocator"),
        (end(f"{CUDA}\n", how=None), "cuda_allocator"),  # it caught the error, and wrote no result
        (end(f"{CUDA}\n", how=None, cancelled="no progress for 9 s"), "cuda_allocator"),  # the others waited for it
        (end(f"RuntimeError: {ALLOCATOR}"), "cpu_allocator"),
        (end("Traceback:\nMemoryError"), "python"),
        (end("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB"), "python"),
        (end(ABORT, "killed by SIGABRT", signal="SIGABRT"), "abort"),
        (end("", "killed by SIGKILL", signal="SIGKILL"), "kernel"),
        (end("RuntimeError: could not create a primitive", limited=True), "system"),
    ],
)  # fmt: skip
def test_memory_ran_out(ended: ScriptEnd, source: str) -> None:
    found = failure(ended, "none", "the kernel's out-of-memory killer" if source == "kernel" else None)
    assert found.source == source
    assert found.bytes_asked == (round(2.5 * 2**30) if source == "cuda_allocator" else found.bytes_asked)


@pytest.mark.parametrize(
    ("ended", "fault", "reason"),
    [
        (end(TORCHRUN.format(error="ValueError: bad width"), rank=0), "error", "exit code 1: ValueError: bad width"),
        (end("ModuleNotFoundError: No module named 'apex'"), "missing_package", "No module named 'apex'"),
        (end("OSError: [Errno 28] No space left on device"), "disk", "No space left"),
        (end("RuntimeError: EADDRINUSE, address already in use"), "rendezvous", "EADDRINUSE"),
        (end("x", "killed by SIGKILL", signal="SIGKILL"), "killed", "killed by SIGKILL"),
        (end(LOST, "killed by SIGABRT", signal="SIGABRT"), "killed", "SIGABRT: terminate called without an active exc"),
        (end(THROWN, "killed by SIGABRT", signal="SIGABRT"), "killed", "what(): [enforce fail]"),
        (end("", "exit code 3"), "error", "exit code 3"),
        (end("done", None), "ended", "none"),
        (end("the word MemoryError in a sentence, and out of memory"), "error", "exit code 1: the word"),
        (end("RuntimeError: could not create a primitive"), "error", "could not create"),  # without a limit, no proof
    ],
)
def test_anything_else_failed_and_says_why(ended: ScriptEnd, fault: str, reason: str) -> None:
    found = failure(ended, "none")
    assert (found.fault, reason in found.reason) == (fault, True), found.reason
    assert found.rank == ended.rank


def test_the_evidence_ends_with_the_error_of_the_rank_that_is_blamed() -> None:
    found = failure(end(TORCHRUN.format(error="ValueError: bad width"), rank=0), "none")
    assert isinstance(found, Failed)
    assert found.evidence.splitlines()[-1] == "ValueError: bad width"
    assert "Connection closed" not in found.evidence


@pytest.mark.parametrize(
    ("log", "says"), [("epoch 1\nepoch 2\n", "its last line is 'epoch 2'"), ("", "it printed nothing")]
)
def test_silence_is_a_hang(log: str, says: str) -> None:
    found = failure(end(log, None, cancelled="no progress for 5 s"), "none")
    assert isinstance(found, Hang)
    assert found.reason == f"no progress for 5 s: {says}"
