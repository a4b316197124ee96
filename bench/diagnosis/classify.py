"""Derives an attempt's outcome from what its ranks left. Pure."""

import math
import re
from collections.abc import Sequence
from typing import TypeVar

from bench.records.hang import Stuck, explain
from bench.records.outcome import INFRASTRUCTURE, Failed, Fault, Hang, Ok, Oom, Outcome
from bench.records.phases import Stage
from bench.records.rank_outcome import RankAudited, RankError, RankKilled, RankOk, RankOom, RankOutcome, RankWalked

T = TypeVar("T")

# Errors of a rank whose peer has ended: a consequence, not the cause.
_PEER_LOST = re.compile(
    r"^Dist(Network|Store|Backend)Error\b|^ConnectionRe(set|fused)Error\b|ncclRemoteError|remote process exited"
    r"|(gloo|transport/tcp|ProcessGroup|TCPStore|c10d|socket).*"
    r"(clos(ed|ure)|reset|refused|timed? ?out|connectFullMesh|connection abort)"
    r"|connection (closed|reset) by peer|connection refused|software caused connection abort|connectFullMesh",
    re.IGNORECASE | re.DOTALL,
)


EVIDENCE_CHARS = 2000
FULL_DISK = "No space left on device|Read-only file system|Disk quota exceeded"
_DESYNC = re.compile(r"Detected mismatch between collectives|distributed collective mismatch")
"""Words of torch's own check, and of gloo when it receives an unexpected size."""
_GAVE_UP = re.compile(r"watchdog got stuck for \d+ seconds|Watchdog caught collective operation timeout", re.IGNORECASE)
"""What torch's NCCL watchdog and its monitor write before they abort a rank that waits for another one."""
STARTING = (Stage.START, Stage.JOIN, Stage.SETUP)
"""Stages in which the ranks connect to each other."""
_FAULTS: tuple[tuple[Fault, tuple[Stage, ...] | None, re.Pattern[str]], ...] = (
    ("regime", None, re.compile(r"^RegimeMismatch\b")),
    ("workload", None, re.compile(r"^(Workload|Samples)Error\b")),
    ("missing_package", None, re.compile(r"^(ModuleNotFound|Import|PackageNotFound)Error\b")),
    (
        "disk",
        None,
        re.compile(
            r"^OSError: \[Errno (28|30|122)\]"
            r"|^PermissionError: \[Errno (13\].*: b?['\"]|1\].*: b?['\"].*/)"  # of a file: a socket has no name
            rf"|{FULL_DISK}"
        ),
    ),
    (
        "rendezvous",
        STARTING,
        re.compile(
            r"address already in use|EADDRINUSE|^Dist(Network|Store)Error\b|RendezvousTimeout|RendezvousConnection"
            r"|connectFullMesh|(client|TCPStore) .*(timed? ?out|refused)",
            re.IGNORECASE,
        ),
    ),
    ("nccl_init", STARTING, re.compile(r"NCCL error|nccl\w+Error")),
)
"""A fault by the words of the rank's error, and the stages in which they mean it; None for all stages."""
HOST = (
    *("cpu_allocator", "onednn", "shared_memory", "cpp", "python", "system", "kernel", "abort", "loader"),
    "pinned_host",
)
"""Values of `Oom.source` for memory of the host."""


def classify(
    ranks: Sequence[RankOutcome],
    *,
    world_size: int,
    cancelled: str | None = None,
    stuck: Sequence[Stuck] = (),
    launcher_error: str | None = None,
) -> Outcome:
    """Derive the attempt's outcome from what its ranks left.

    Args:
        ranks: at most one per rank; a rank that left nothing is missing.
        cancelled: why bench ended the attempt, if it did: no progress, or the time limit.
        stuck: what the ranks were doing then.
        launcher_error: why the launch ended, if it did so before its ranks left their results.
    """
    measured = [rank for rank in ranks if isinstance(rank, RankOk)]
    if len(measured) == world_size:
        # Every rank has its result: a launcher that fails after that, or the time limit, changes nothing.
        return _without_number(measured) or Ok(ranks=tuple(sorted(measured, key=lambda rank: rank.rank)))
    failures = [rank for rank in ranks if not isinstance(rank, RankOk | RankWalked | RankAudited)]
    causes = sorted((f for f in failures if not _is_consequence(f)), key=lambda f: (f.kind != "oom", f.at))
    if causes:
        return _desync(failures) or _outcome_of(causes[0])
    cancelled = cancelled or _gave_up(failures)
    if cancelled is not None:
        finished = [rank.rank for rank in measured]
        where = explain(stuck, world_size, finished) if stuck or finished else _phases(failures)
        return Hang(reason=cancelled + (f": {where}" if where else ""), stuck=tuple(stuck))
    if launcher_error is not None:
        return _launch_failed(launcher_error)
    # A rank's own error says more than a signal does.
    reported = _outcome_of(min(failures, key=lambda f: (f.kind == "killed", f.at))) if failures else None
    missing = min(set(range(world_size)) - {rank.rank for rank in ranks}, default=None)
    if reported is not None and (
        missing is None or (isinstance(reported, Failed) and reported.fault in INFRASTRUCTURE)
    ):
        return reported
    evidence = reported.reason if reported is not None else None
    reason = f"rank {missing} left neither a result nor an error"
    return Failed(fault="ended", rank=missing, phase=None, reason=reason, evidence=evidence)


def _phases(failures: Sequence[RankOom | RankError | RankKilled]) -> str:
    return ", ".join(f"rank {f.rank} in {f.phase}" for f in sorted(failures, key=lambda f: f.rank))


def _is_consequence(failure: RankOom | RankError | RankKilled) -> bool:
    match failure:
        case RankKilled(by_bench=reason):
            return reason is not None or _gave_up([failure]) is not None
        case RankError(error=error):
            return bool(_PEER_LOST.search(error))
    return False


def _gave_up(failures: Sequence[RankOom | RankError | RankKilled]) -> str | None:
    """The words with which torch's watchdog aborted a rank. bench's own limit comes first, unless a library made a
    group with torch's time limit after set-up."""
    aborted = (f.last_words or "" for f in failures if isinstance(f, RankKilled) and f.signal == "SIGABRT")
    lines = (line.strip() for words in aborted for line in words.splitlines() if _GAVE_UP.search(line))
    return next((f"torch gave up on a collective: {line}" for line in lines), None)


def _desync(failures: Sequence[RankOom | RankError | RankKilled]) -> Failed | None:
    """Ranks that issued different collectives, and the place of each: the rank that reports it need not be at fault."""
    for failure in failures:
        words = failure.error if isinstance(failure, RankError) else getattr(failure, "last_words", None) or ""
        line = next((line.strip() for line in words.splitlines() if _DESYNC.search(line)), None)
        if line is not None:
            ranks = sorted(failures, key=lambda f: f.rank)
            places = [f"rank {f.rank} in {f.place}" for f in ranks if not isinstance(f, RankOom) and f.place]
            reason = f"ranks issued different collectives: {'; '.join([*places, line])}"
            return Failed(fault="desync", rank=failure.rank, phase=failure.phase, reason=reason, evidence=words)
    return None


def _outcome_of(failure: RankOom | RankError | RankKilled) -> Oom | Failed:
    match failure:
        case RankOom(rank=rank, phase=phase, message=message, source=source, bytes_asked=asked):
            return Oom(rank=rank, phase=phase, reason=message, source=source, bytes_asked=asked)
        case RankError(rank=rank, phase=phase, error=error, traceback=text, place=place):
            fault: Fault = "error" if text else "ended"
            fault = next((name for name, when, says in _FAULTS if _is(failure, when, says)), fault)
            reason = f"{error} (in {place})" if fault == "error" and _is_of_workload(place) else error
            return Failed(fault=fault, rank=rank, phase=phase, reason=reason, evidence=text[-EVIDENCE_CHARS:] or None)
        case RankKilled(rank=rank, phase=phase, signal=signal, by_bench=by_bench, place=place, last_words=words):
            reason = by_bench or f"killed by {signal}" + (f" in {place}" if place else "")
            return Failed(fault="killed", rank=rank, phase=phase, reason=reason, evidence=words)


def _is_of_workload(place: str | None) -> bool:
    """Whether the place of an error is no function of bench."""
    return place is not None and "(runner/" not in place


def _is(failure: RankError, stages: tuple[Stage, ...] | None, says: re.Pattern[str]) -> bool:
    return (stages is None or failure.phase in stages) and bool(says.search(failure.error))


def _launch_failed(error: str) -> Failed:
    """A launch that ended before its ranks left results. A port in use or a full disk can be the cause there too."""
    fault: Fault = "launch"
    fault = next((name for name, _, says in _FAULTS if name in ("rendezvous", "disk") and says.search(error)), fault)
    return Failed(fault=fault, rank=None, phase=None, reason=error)


def _without_number(ranks: Sequence[RankOk]) -> Failed | None:
    """A loss that is not finite: the steps after it are not training. It is a mean over ranks, so no rank is named."""
    for one in sorted(ranks, key=lambda rank: rank.rank):
        for stage, losses in ((Stage.WARMUP, one.warmup_losses), (Stage.MEASURE, one.losses)):
            for step, loss in enumerate(losses):
                if not math.isfinite(loss):
                    reason = f"the loss is {loss} at step {step} of {stage}"
                    return Failed(fault="nan_loss", rank=None, phase=stage, reason=reason)
    return None


def reclassify_host_oom(outcome: T | Oom, *, separate_memory: bool) -> T | Oom | Failed:
    """The outcome, but a failure where the host of a GPU ran out of memory: a smaller batch may not help.

    Args:
        separate_memory: ranks train in another memory than the host's: on GPUs that have their own.
    """
    if not separate_memory or not isinstance(outcome, Oom) or outcome.source not in HOST:
        return outcome
    reason = f"the memory of the host ran out, not that of the GPU: {outcome.reason}"
    return Failed(fault="host_memory", rank=outcome.rank, phase=outcome.phase, reason=reason)
