"""Before a rank works, and without rank servers: what is missing or falls back, the kernel's killer, own launches."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import account_of
from planted import LEAVES, PHASES, SAYS, WORDS, Benches, Planted, bounded
from table import FaultBench, Phase, judge, skip

from bench.records.outcome import Failed

pytestmark = pytest.mark.timeout(1800)  # the first to ask waits for all cells of a run, with others beside it


# A missing package, and another regime.
def test_a_package_that_is_not_there_is_named(benches: Benches) -> None:
    bench = benches("missing")
    (bench.folder / "shadow/deepspeed").mkdir(parents=True)
    (bench.folder / "shadow/deepspeed/__init__.py").write_text("raise ModuleNotFoundError('no deepspeed, planted')\n")
    path = os.pathsep.join([str(bench.folder / "shadow"), bench.python_path])
    run = Planted(bench, [{"backend": "zero2", "plant": "none"}], PYTHONPATH=path)
    result = run.result(backend="zero2")
    judge(bench, "all ranks: DeepSpeed is missing", "set-up", result, "failed missing_package", says="planted")


def test_a_module_that_raises_when_it_is_imported(bench: FaultBench) -> None:
    matrix = bench.matrix(workload={"name": "imports:Toy"}, matrix={"backend": ["ddp", "fsdp"], "batch": 1})
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    raised, _ = bench.results()
    judge(bench, "all ranks: the module raises", "set-up", raised, "failed error", says="planted in the import")


def test_a_silent_fall_back_to_ddp_is_failed_with_both_regimes_named(bench: FaultBench) -> None:
    matrix = bench.matrix(workload={"name": "fallback:Toy"}, matrix={"backend": ["fsdp", "ddp"], "batch": 2})
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    fell, _ = bench.results()
    judge(bench, "all ranks: fall back to DDP", "set-up", fell, "failed regime")
    assert isinstance(fell.outcome, Failed)
    assert "distributed_type: requested FSDP, observed MULTI_CPU" in fell.outcome.reason
    assert "sharding: requested FULL_SHARD, observed none" in fell.outcome.reason
    assert "sharded_parameters: requested some, observed 0" in fell.outcome.reason


# The kernel's out-of-memory killer.
@pytest.fixture(scope="module")
def eating(benches: Benches) -> Iterator[Planted | None]:
    """In a cgroup of 3 GiB; None if it cannot be created."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if (v1 / "memory.limit_in_bytes").exists() else (v2, "memory.max")
    cgroup = root / f"bench-faults-{os.getpid()}"
    try:
        cgroup.mkdir()
        (cgroup / limit).write_text(str(3 * 2**30))
    except OSError:
        yield None
    else:
        yield Planted(benches("eating"), [{"plant": "eat", "at": at} for at in PHASES], cgroup=cgroup)
    finally:
        if cgroup.exists():
            cgroup.rmdir()


@pytest.mark.parametrize("at", PHASES)
def test_a_rank_that_the_kernel_kills_for_memory(eating: Planted | None, at: Phase) -> None:
    fault = "one rank: the kernel's out-of-memory killer"
    if eating is None:
        skip(fault, at, "needs the right to make a memory cgroup")
    says = "killed by SIGKILL: the kernel's out-of-memory killer, cgroup memory"
    seen = eating.result(plant="eat", at=at)
    # While the memory of the first is not free yet, the kernel may kill the other rank, too.
    both = seen is not None and "oom_kill 0 -> 2" in getattr(seen.outcome, "reason", "")
    judge(eating.bench, fault, at, seen, "oom", says=says, rank=None if both else 1)


# Each attempt in an accelerate launch of its own.
OWN = {
    "kill": ("failed killed", "SIGKILL"),
    "exit": ("failed ended", ""),
    "sleep": ("hang", "rank 1 is in _strike"),
    "flood": ("ok", ""),
    "leave": ("ok", ""),
}


@pytest.fixture(scope="module")
def own(benches: Benches) -> Planted:
    cells = [{"plant": plant} for plant in OWN]
    # More than a gigabyte of output takes where others use the cores and the disk, too.
    return Planted(benches("own"), cells, "--isolation", "launch", launch={"hang_after_s": 20})


@pytest.mark.parametrize("plant", OWN)
def test_in_launches_of_their_own(own: Planted, plant: str) -> None:
    expected, says = OWN[plant]
    result = own.result(plant=plant)
    name = {"sleep": "asleep", "flood": SAYS["flood"], "leave": LEAVES, **WORDS}[plant]
    judge(own.bench, f"separate launch, one rank: {name}", "measuring", result, expected, says=says)
    assert result.isolation == "launch"
    account_of(result)
    if plant == "flood":
        assert bounded(own.file(result, "rank1.log")).endswith(b"the last words\n")


def test_a_run_in_launches_of_their_own_says_that_attempts_failed(own: Planted) -> None:
    assert own.exit_code() == 1
