"""On two real ranks, one dies, raises, runs out of memory, stops, floods its log or diverges."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from faulty import FLOOD_BYTES, MEASURE
from harness import account_of
from table import FaultBench, Phase, judge, skip

from bench.records.outcome import Failed, Hang, Oom, Result
from bench.runner.log import HEAD_BYTES, TAIL_BYTES

pytestmark = pytest.mark.timeout(1800)  # the first to ask waits for all cells of a run, with others beside it

PHASES: tuple[Phase, ...] = ("set-up", "warm-up", "measuring", "teardown")
Benches = Callable[[str], FaultBench]
Cell = Mapping[str, Any]
MARGIN_S = 5.0
"""How long the other ranks may run after one has failed."""


class Planted:
    """A run with one cell per fault and a last one without. It runs beside others until a result is requested."""

    def __init__(
        self,
        bench: FaultBench,
        cells: Sequence[Cell],
        *arguments: str,
        launch: Cell | None = None,
        cgroup: Path | None = None,
        **environment: str,
    ) -> None:
        self.bench = bench
        include = [{"backend": "ddp", "batch": 1, **cell} for cell in [*cells, {"plant": "none"}]]
        matrix = bench.matrix(
            workload={"name": "faulty:Faulty"}, matrix={}, include=include, measure=MEASURE, launch=launch or {}
        )
        process = bench.start("run", matrix, "--out", str(bench.folder / "run"), *arguments, **environment)
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))  # it has started nothing yet
        self._reader = threading.Thread(target=process.communicate)  # a full pipe would stop it
        self._reader.start()
        self._process = process

    def exit_code(self) -> int | None:
        self._reader.join(timeout=1500)
        return self._process.poll()

    def result(self, **axes: object) -> Result | None:
        """The result of the cell with these axes; None if the run did not get that far."""
        self.exit_code()
        axes = {"backend": "ddp", **axes}
        found = [result for result in self.bench.results() if axes.items() <= result.axes.items()]
        assert len(found) < 2
        return found[0] if found else None

    def file(self, result: Result, name: str) -> Path:
        return self.bench.folder / "run/attempts" / result.attempt.slug / name

    def ended_together(self, result: Result) -> bool:
        """No rank had to wait for long."""
        first, last = sorted(self.file(result, f"rank{rank}.json").stat().st_mtime for rank in (0, 1))
        return last - first < MARGIN_S


IN_WORKLOAD = r" \(in _strike \(faults/faulty\.py:\d+\)\)"

# One rank exits or raises. Python ignores exceptions while it destroys an object, so nothing is lost then.
ENDS = {
    "kill": ("failed killed", "^killed by SIGKILL"),
    "segfault": ("failed killed", "^killed by SIGSEGV"),
    "raise": ("failed error", rf"^ValueError: planted{IN_WORKLOAD}$"),
    "surrogates": ("failed error", rf"no such file: \\udcff\\udcfe{IN_WORKLOAD}$"),
    "exit": ("failed ended", "ended by itself with exit code 0"),
    "exit in a thread": ("failed ended", "ended by itself with exit code 0"),
    "sys.exit": ("failed error", rf"^SystemExit: 3{IN_WORKLOAD}$"),
    "allocate": ("oom", "4503599627370496"),
}
SAYS = {"flood": "1 GB of output", "not UTF-8": "output that is not UTF-8"}
LEAVES = "a process left behind"
SHARDED = ("fsdp", "fsdp2", "zero2", "zero3")
RAISES = ("raise", "surrogates", "sys.exit", "allocate")
WORDS = {
    "kill": "SIGKILL",
    "segfault": "SIGSEGV",
    "raise": "exception",
    "surrogates": "exception that UTF-8 cannot encode",
    "exit": "exit 0 too early",
    "exit in a thread": "exit 0 in a thread",
    "sys.exit": "sys.exit",
    "allocate": "out of memory",
}


# Ranks that wait for each other.
DOES_NOTHING = {
    "sleep": ("asleep", r"rank 1 is in _strike \(faults/faulty.py:\d+\)"),
    "busy": ("holds the interpreter", "rank 1 did not answer"),
    "stop": ("SIGSTOP", "rank 1 did not answer"),
}
DESYNC: dict[tuple[str, str, Phase], str] = {
    ("ddp", "extra collective", "set-up"): "hang",
    ("ddp", "extra collective", "warm-up"): "failed desync",
    ("ddp", "extra collective", "measuring"): "failed desync",
    ("ddp", "extra collective", "teardown"): "ok",
    ("fsdp", "extra collective", "measuring"): "hang",
    ("fsdp2", "extra collective", "measuring"): "hang",
    ("zero3", "extra collective", "measuring"): "failed desync",
    ("ddp", "another collective", "measuring"): "hang",
    ("fsdp", "another collective", "measuring"): "hang",
    ("fsdp2", "another collective", "measuring"): "hang",
    ("zero3", "another collective", "measuring"): "hang",
}
"""gloo reports an error when it receives more than it expects; otherwise the ranks wait forever. When the other rank
has finished, the connection ends, which raises an exception that Python ignores."""


@pytest.fixture(scope="module")
def runs(benches: Benches) -> dict[str, Planted]:
    """In parallel, because hanging ranks take minutes but no CPU time."""
    everywhere = [{"plant": plant, "at": at} for plant in (*ENDS, *SAYS, "leave") for at in PHASES]
    backward = [{"plant": "allocate", "way": "backward", "at": at} for at in ("warm-up", "measuring")]
    sharded = [{"plant": plant, "backend": backend} for plant in ("kill", "allocate") for backend in SHARDED]
    killed = [{"plant": f"{plant} and kill"} for plant in SAYS]
    numbers = [{"plant": plant, "at": at} for plant in ("nan", "inf") for at in ("warm-up", "measuring")]
    nothing = [{"plant": plant, "at": at} for plant in DOES_NOTHING for at in PHASES]
    apart = [{"backend": backend, "plant": plant, "at": at} for backend, plant, at in DESYNC]
    slow = [*({"plant": "doze", "at": at} for at in PHASES), {"plant": "none", "sleep_s": 3.0}]
    return {
        "still": Planted(benches("still"), nothing, launch={"hang_after_s": 5}),
        "apart": Planted(benches("apart"), [*apart, *slow], launch={"hang_after_s": 5}),
        "planted": Planted(benches("planted"), [*everywhere, *backward, *sharded, *killed, *numbers]),
    }


@pytest.fixture
def planted(runs: dict[str, Planted]) -> Planted:
    """Faults that end by themselves."""
    return runs["planted"]


@pytest.fixture
def still(runs: dict[str, Planted]) -> Planted:
    """Ranks that do nothing."""
    return runs["still"]


@pytest.fixture
def apart(runs: dict[str, Planted]) -> Planted:
    """Ranks that diverge, and slow ranks."""
    return runs["apart"]


@pytest.mark.parametrize("at", PHASES)
@pytest.mark.parametrize("plant", ENDS)
def test_a_rank_that_ends_or_raises_is_named_and_the_other_ends_too(planted: Planted, plant: str, at: Phase) -> None:
    expected, says = ("ok", "") if at == "teardown" and plant in RAISES else ENDS[plant]
    result = planted.result(plant=plant, at=at, way="forward")
    rank = None if expected == "ok" else 1
    judge(planted.bench, f"one rank: {WORDS[plant]}", at, result, expected, says=says, rank=rank)
    assert planted.ended_together(result)
    if expected == "ok":
        assert "Exception ignored in" in planted.file(result, "rank1.log").read_text()


@pytest.mark.parametrize("at", ["warm-up", "measuring"])
def test_out_of_memory_in_the_backward_pass(planted: Planted, at: Phase) -> None:
    result = planted.result(plant="allocate", at=at, way="backward")
    judge(planted.bench, "one rank: out of memory in backward", at, result, "oom", rank=1)
    assert isinstance(result.outcome, Oom)
    assert result.outcome.bytes_asked == 2**52
    assert planted.ended_together(result)


@pytest.mark.parametrize("backend", SHARDED)
@pytest.mark.parametrize("plant", ["kill", "allocate"])
def test_on_sharded_backends_too(planted: Planted, plant: str, backend: str) -> None:
    expected, says = ENDS[plant]
    result = planted.result(plant=plant, backend=backend)
    judge(planted.bench, f"one rank: {WORDS[plant]}", "measuring", result, expected, says=says, rank=1)
    assert planted.ended_together(result)
    if isinstance(result.outcome, Oom):
        assert result.outcome.bytes_asked == 2**52


@pytest.mark.parametrize("at", PHASES)
def test_what_a_rank_starts_does_not_outlive_the_attempt(planted: Planted, at: Phase) -> None:
    judge(planted.bench, f"one rank: {LEAVES}", at, planted.result(plant="leave", at=at), "ok")


@pytest.mark.parametrize("at", PHASES)
@pytest.mark.parametrize("plant", DOES_NOTHING)
def test_a_rank_that_does_nothing_is_named_with_its_place(still: Planted, plant: str, at: Phase) -> None:
    name, says = DOES_NOTHING[plant]
    result = still.result(plant=plant, at=at)
    judge(still.bench, f"one rank: {name}", at, result, "hang", says=f"^no progress for 5 s: .*{says}")
    assert isinstance(result.outcome, Hang)
    other = {"set-up": "rank 0 waits at collective", "teardown": "rank 0 had finished"}.get(at, "rank 0 waits at")
    assert other in result.outcome.reason


@pytest.mark.parametrize(("backend", "plant", "at"), DESYNC)
def test_ranks_that_part_are_told_where(apart: Planted, backend: str, plant: str, at: Phase) -> None:
    result = apart.result(backend=backend, plant=plant, at=at)
    expected = DESYNC[backend, plant, at]
    says = {"hang": r"the ranks differ at collective \d+; .*_strike", "ok": ""}.get(
        expected, "different .*rank 1 in _strike"
    )
    article = "an" if plant.startswith("extra") else ""
    judge(apart.bench, f"one rank: {article} {plant}, {backend}".replace("  ", " "), at, result, expected, says=says)


@pytest.mark.parametrize("at", PHASES)
def test_slow_is_not_hung(apart: Planted, at: Phase) -> None:
    judge(apart.bench, "one rank: slow, 3 s with a hang limit of 5 s", at, apart.result(plant="doze", at=at), "ok")


def test_slow_steps_are_not_hung(apart: Planted) -> None:
    result = apart.result(plant="none", sleep_s=3.0)
    judge(apart.bench, "all ranks: every step slow, 3 s with a hang limit of 5 s", "measuring", result, "ok")


# Output of a rank, and its loss.
def bounded(log: Path) -> bytes:
    """The log of a flood, after a check of its size."""
    content = log.read_bytes()
    said = b"\n[%15d bytes of output are left out here]\n" % (FLOOD_BYTES - HEAD_BYTES - TAIL_BYTES)
    assert len(content) == HEAD_BYTES + len(said) + TAIL_BYTES
    left_out = int(content[HEAD_BYTES : HEAD_BYTES + len(said)].split(b"bytes")[0].strip(b"\n[ "))
    assert left_out >= FLOOD_BYTES - HEAD_BYTES - TAIL_BYTES
    return content


@pytest.mark.parametrize("at", PHASES)
@pytest.mark.parametrize("plant", SAYS)
def test_output_is_kept_as_it_is_and_never_more_than_two_megabytes(planted: Planted, plant: str, at: Phase) -> None:
    result = planted.result(plant=plant, at=at)
    judge(planted.bench, f"one rank: {SAYS[plant]}", at, result, "ok")
    log = planted.file(result, "rank1.log")
    if plant == "flood":
        assert b"the first words\n" in bounded(log)[:HEAD_BYTES]
        assert b"the last words\n" in bounded(log)[-TAIL_BYTES:]
    else:
        assert b"\xff\xfe\x00 said in no encoding\n" in log.read_bytes()


def test_the_last_words_of_a_rank_that_is_killed_in_a_flood_are_there(planted: Planted) -> None:
    result = planted.result(plant="flood and kill")
    judge(planted.bench, f"one rank: {SAYS['flood']}, then SIGKILL", "measuring", result, "failed killed", rank=1)
    assert bounded(planted.file(result, "rank1.log")).endswith(b"the last words\n")


def test_last_words_in_no_encoding_are_shown(planted: Planted) -> None:
    result = planted.result(plant="not UTF-8 and kill")
    judge(planted.bench, f"one rank: {SAYS['not UTF-8']}, then SIGKILL", "measuring", result, "failed killed", rank=1)
    shown = planted.bench("show", result.attempt.cell.id, str(planted.bench.folder / "run"))
    assert "said in no encoding" in shown


@pytest.mark.parametrize("at", ["warm-up", "measuring"])
@pytest.mark.parametrize("plant", ["nan", "inf"])
def test_a_loss_that_is_no_number_is_failed(planted: Planted, plant: str, at: Phase) -> None:
    result = planted.result(plant=plant, at=at)
    judge(
        planted.bench, f"one rank: the loss is {plant}", at, result, "failed nan_loss", says=f"the loss is {plant} at"
    )


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
    judge(eating.bench, fault, at, eating.result(plant="eat", at=at), "oom", says=says, rank=1)


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


def test_a_run_says_that_attempts_failed(runs: dict[str, Planted], own: Planted) -> None:
    assert [run.exit_code() for run in (*runs.values(), own)] == [1] * 4
