"""On two real ranks, one dies, raises, runs out of memory, stops, floods its log or diverges."""

from collections.abc import Iterator

import pytest
from planted import LEAVES, PHASES, SAYS, WORDS, Benches, Planted, bounded
from table import Phase, judge

from bench.records.outcome import Hang, Oom
from bench.runner.log import HEAD_BYTES, TAIL_BYTES

pytestmark = pytest.mark.timeout(1800)  # the first to ask waits for all cells of a run, with others beside it

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
SHARDED = ("fsdp", "fsdp2", "zero2", "zero3")
RAISES = ("raise", "surrogates", "sys.exit", "allocate")


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
def runs(benches: Benches) -> Iterator[dict[str, Planted]]:
    """In parallel, because hanging ranks take minutes but no CPU time. A run that no test has asked for ends, too."""
    everywhere = [{"plant": plant, "at": at} for plant in (*ENDS, *SAYS, "leave") for at in PHASES]
    backward = [{"plant": "allocate", "way": "backward", "at": at} for at in ("warm-up", "measuring")]
    sharded = [{"plant": plant, "backend": backend} for plant in ("kill", "allocate") for backend in SHARDED]
    killed = [{"plant": f"{plant} and kill"} for plant in SAYS]
    numbers = [{"plant": plant, "at": at} for plant in ("nan", "inf") for at in ("warm-up", "measuring")]
    nothing = [{"plant": plant, "at": at} for plant in DOES_NOTHING for at in PHASES]
    apart = [{"backend": backend, "plant": plant, "at": at} for backend, plant, at in DESYNC]
    slow = [*({"plant": "doze", "at": at} for at in PHASES), {"plant": "none", "sleep_s": 3.0}]
    started = {
        "still": Planted(benches("still"), nothing, launch={"hang_after_s": 5}),
        "apart": Planted(benches("apart"), [*apart, *slow], launch={"hang_after_s": 5}),
        "planted": Planted(benches("planted"), [*everywhere, *backward, *sharded, *killed, *numbers]),
    }
    yield started
    for run in started.values():
        run.exit_code()


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


def test_a_run_says_that_attempts_failed(runs: dict[str, Planted]) -> None:
    assert [run.exit_code() for run in runs.values()] == [1] * 3
