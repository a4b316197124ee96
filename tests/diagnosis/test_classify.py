"""The outcome of an attempt, from the files of its ranks; and that a stored record says the same when it is read."""

import math
from itertools import permutations
from typing import get_args

import pytest
from examples import ok, rank, result, world
from pydantic import TypeAdapter, ValidationError

from bench.diagnosis.classify import HOST, classify, reclassify_host_oom
from bench.diagnosis.oom_words import Kind
from bench.records.outcome import Failed, Hang, Oom, Outcome, Result
from bench.records.rank_outcome import RankError, RankKilled, RankOom, RankOutcome

PEER = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:20344"
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:542] Read error [127.0.0.1]:45: Connection reset by peer"
NCCL = (
    "DistBackendError: NCCL error in: NCCLUtils.hpp:219, ncclRemoteError: A call failed possibly due to a network error"
)
GLOO = "terminate called\n  what(): 64 vs 32. Is there a distributed collective mismatch in your code?\n"
TAKEN = "DistNetworkError: The server socket has failed to listen on any local network address. EADDRINUSE"
OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
RANK_OUTCOME: TypeAdapter[RankOutcome] = TypeAdapter(RankOutcome)


def oom(number: int, at: float = 1.0) -> RankOom:
    return RankOom(rank=number, phase="warmup", message=f"rank {number} is full", at=at)


def error(number: int, at: float = 1.0, text: str = "ValueError: planted") -> RankError:
    return RankError(rank=number, phase="forward", error=text, traceback="Traceback", at=at)


def killed(number: int, at: float = 1.0, by_bench: str | None = None) -> RankKilled:
    return RankKilled(rank=number, phase="measure", signal="SIGKILL", at=at, by_bench=by_bench)


ENDED = "another rank had failed"
OOM_0, OOM_1 = (Oom(rank=n, phase="warmup", reason=f"rank {n} is full") for n in (0, 1))
ERROR_0, ERROR_1 = (Failed(rank=n, phase="forward", reason="ValueError: planted", evidence="Traceback") for n in (0, 1))
KILLED_1 = Failed(fault="killed", rank=1, phase="measure", reason="killed by SIGKILL")

CASES: dict[str, tuple[list[RankOutcome], dict[str, object], Outcome]] = {
    "both ranks measured": ([rank(0), rank(1)], {}, world(rank(0), rank(1))),
    "one rank is a world": ([*world(rank(0)).ranks], {"world_size": 1}, world(rank(0))),
    "one rank out of memory": ([oom(0)], {"world_size": 1}, OOM_0),
    "out of memory while the peer loses its connection first": ([error(0, 1.0, PEER), oom(1, 2.0)], {}, OOM_1),
    "out of memory while the peer is ended by bench": ([oom(0), killed(1, 2.0, ENDED)], {}, OOM_0),
    "out of memory while the peer has measured": ([rank(0), oom(1)], {}, OOM_1),
    "both out of memory: the first": ([oom(0, 2.0), oom(1, 1.0)], {}, OOM_1),
    "out of memory beats an error of the other rank": ([error(0, 1.0), oom(1, 1.5)], {}, OOM_1),
    "killed while the peer loses its connection first": ([error(0, 1.0, RESET), killed(1, 1.1)], {}, KILLED_1),
    "killed while NCCL loses its peer": ([error(0, 1.0, NCCL), killed(1, 1.1)], {}, KILLED_1),
    "killed while the peer is ended by bench": ([killed(0, 2.0, ENDED), killed(1)], {}, KILLED_1),
    "two errors: the first, whatever its rank": ([error(0, 2.0), error(1, 1.0)], {}, ERROR_1),
    "an error before a kill": ([error(0, 1.0), killed(1, 2.0)], {}, ERROR_0),
    "an error in the workload's code": (
        [error(0).model_copy(update={"place": "my_model (mine/model.py:6)"})],
        {"world_size": 1},
        Failed(
            rank=0, phase="forward", reason="ValueError: planted (in my_model (mine/model.py:6))", evidence="Traceback"
        ),
    ),
    "an error in bench's own code": (
        [error(0).model_copy(update={"place": "step (runner/steps.py:50)"})],
        {"world_size": 1},
        ERROR_0,
    ),
    "an error while the peer has measured": ([rank(0), error(1)], {}, ERROR_1),
    "consequences alone: the first": (
        [error(0, 2.0, PEER), error(1, 1.0, RESET)],
        {},
        Failed(rank=1, phase="forward", reason=RESET, evidence="Traceback"),
    ),
    "timed out, and bench ended both": (
        [killed(0, 9.0, "time is up"), killed(1, 9.0, "time is up")],
        {"cancelled": "no result within 8 s"},
        Hang(reason="no result within 8 s: rank 0 in measure, rank 1 in measure"),
    ),
    "timed out, and nobody said a word": (
        [],
        {"cancelled": "no result within 0.5 s"},
        Hang(reason="no result within 0.5 s"),
    ),
    "timed out after one rank had raised": (
        [error(0), killed(1, 9.0, "time is up")],
        {"cancelled": "no result within 8 s"},
        ERROR_0,
    ),
    "timed out after one rank ran out of memory": ([oom(1)], {"cancelled": "no result within 8 s"}, OOM_1),
    "timed out, and the servers had to be killed": (
        [],
        {"cancelled": "no result within 8 s", "launcher_error": "accelerate launch was killed by SIGKILL"},
        Hang(reason="no result within 8 s"),
    ),
    "the launcher's word when no rank has one": (
        [],
        {"launcher_error": "died"},
        Failed(fault="launch", rank=None, phase=None, reason="died"),
    ),
    "the launcher's word before a consequence": (
        [error(0, 1.0, PEER)],
        {"launcher_error": "rank 1 was killed"},
        Failed(fault="launch", rank=None, phase=None, reason="rank 1 was killed"),
    ),
    "a rank's own cause before the launcher's word": ([error(0)], {"launcher_error": "exit code 1"}, ERROR_0),
    "measured by all before the launcher died": (
        [rank(0), rank(1)],
        {"launcher_error": "died", "cancelled": "no result within 8 s"},
        world(rank(0), rank(1)),
    ),
    "timed out after one rank had measured": (
        [rank(0)],
        {"cancelled": "no result within 8 s"},
        Hang(
            reason="no result within 8 s: rank 0 had finished; rank 1 did not answer: stopped, or busy in native code"
        ),
    ),
    "one rank hears of different collectives by an abort, the other by the loss of its peer": (
        [
            error(0, 2.0, PEER).model_copy(update={"place": "project (model/backbone.py:79)"}),
            killed(1).model_copy(
                update={"signal": "SIGABRT", "place": "embed (model/vision.py:11)", "last_words": GLOO}
            ),
        ],
        {},
        Failed(
            fault="desync",
            rank=1,
            phase="measure",
            reason="ranks issued different collectives: rank 0 in project (model/backbone.py:79); rank 1 in embed"
            " (model/vision.py:11); what(): 64 vs 32. Is there a distributed collective mismatch in your code?",
            evidence=GLOO,
        ),
    ),
    "a port that was taken": (
        [error(0, 1.0, TAKEN).model_copy(update={"phase": "join"}), killed(1, 2.0, ENDED)],
        {},
        Failed(fault="rendezvous", rank=0, phase="join", reason=TAKEN, evidence="Traceback"),
    ),
    "a loss that is no number": (
        [rank(0, losses=(1.0, math.nan)), rank(1, losses=(1.0, math.nan))],
        {},
        Failed(fault="nan_loss", rank=None, phase="measure", reason="the loss is nan at step 1 of measure"),
    ),
    "one rank is missing": (
        [rank(0)],
        {},
        Failed(fault="ended", rank=1, phase=None, reason="rank 1 left neither a result nor an error"),
    ),
    "a consequence and a rank without a word": (
        [error(0, 1.0, RESET)],
        {},
        Failed(fault="ended", rank=1, phase=None, reason="rank 1 left neither a result nor an error", evidence=RESET),
    ),
    "a rank is missing because a port was taken": (
        [error(0, 1.0, TAKEN).model_copy(update={"phase": "setup"})],
        {},
        Failed(fault="rendezvous", rank=0, phase="setup", reason=TAKEN, evidence="Traceback"),
    ),
    "all ranks are missing: the first": (
        [],
        {},
        Failed(fault="ended", rank=0, phase=None, reason="rank 0 left neither a result nor an error"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_classify_in_whatever_order_the_ranks_come(name: str) -> None:
    ranks, known, expected = CASES[name]
    for order in permutations(ranks):
        assert classify(order, **{"world_size": 2, **known}) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/mnt/cache/x.bin'", "disk"),
        ("PermissionError: [Errno 13] Permission denied: 'cache'", "disk"),
        ("PermissionError: [Errno 1] Operation not permitted: '/mnt/cache'", "disk"),
        ("PermissionError: [Errno 1] Operation not permitted: 'gpu'", "error"),
        ("PermissionError: [Errno 13] Permission denied", "error"),  # to bind a socket
        ("PermissionError: no", "error"),
        ("OSError: [Errno 28] No space left on device: 'x'", "disk"),
    ],
)
def test_a_disk_is_blamed_for_files_alone(said: str, fault: str) -> None:
    outcome = classify([error(0, 1.0, said), killed(1, 2.0, ENDED)], world_size=2)
    assert outcome.fault == fault


OUTCOMES: list[Outcome] = [
    ok((0.1, 0.2, 0.30000000000000004), (0.1, 0.1, 1e-9)),
    OOM_0,
    Hang(reason="no result within 8 s"),
    Failed(rank=None, phase=None, reason='a "quoted"\nsecond line, é and \x1b[31m'),
    Result.model_validate_json(result().model_dump_json()).outcome,
    OUTCOME.validate_python({"kind": "skipped", "reason": "known beforehand"}),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=[outcome.kind for outcome in OUTCOMES])
def test_every_outcome_survives_json(outcome: Outcome) -> None:
    stored = result(outcome)
    assert Result.model_validate_json(stored.model_dump_json()) == stored


@pytest.mark.parametrize("outcome", [rank(3), oom(0), error(0), killed(0), killed(0, by_bench=ENDED)])
def test_every_rank_outcome_survives_json(outcome: RankOutcome) -> None:
    assert RANK_OUTCOME.validate_json(RANK_OUTCOME.dump_json(outcome)) == outcome


def test_a_loss_that_is_no_number_survives_json() -> None:
    losses = (math.nan, math.inf, -math.inf, 0.5)
    stored = result(ok((0.1, 0.1), losses=losses))
    read = Result.model_validate_json(stored.model_dump_json())
    assert repr(read.outcome.ranks[0].losses) == repr(losses)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=[outcome.kind for outcome in OUTCOMES])
def test_an_unknown_field_is_refused(outcome: Outcome) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        OUTCOME.validate_python(outcome.model_dump() | {"surprise": 1})


@pytest.mark.parametrize("change", [{"schema_version": 2}, {"outcome": {"kind": "unheard-of"}}, {"wall_s": "long"}])
def test_a_record_of_another_schema_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Result.model_validate(result().model_dump() | change)


DEVICE = ("cuda_allocator", "cuda_driver", "cublas", "cudnn", "cuda_library", "nccl")


def test_every_source_is_of_the_host_or_of_the_gpu() -> None:
    assert {*get_args(Kind), "kernel", "abort", "loader"} == {*HOST, *DEVICE}


@pytest.mark.parametrize("source", HOST)
def test_the_host_of_a_gpu_fails_and_a_cpu_is_full(source: str) -> None:
    full = Oom(rank=1, phase="setup", reason="killed by SIGKILL: the kernel", source=source)
    assert reclassify_host_oom(full, separate_memory=False) == full
    assert reclassify_host_oom(full, separate_memory=True) == Failed(
        fault="host_memory",
        rank=1,
        phase="setup",
        reason="the memory of the host ran out, not that of the GPU: killed by SIGKILL: the kernel",
    )


@pytest.mark.parametrize("source", [*DEVICE, "cuda_abort", None])
def test_a_full_gpu_is_full(source: str | None) -> None:
    full = Oom(rank=1, phase="warmup", reason="CUDA out of memory", source=source)
    assert reclassify_host_oom(full, separate_memory=True) == full


def test_other_outcomes_stay() -> None:
    assert reclassify_host_oom(Hang(reason="time is up"), separate_memory=True) == Hang(reason="time is up")
