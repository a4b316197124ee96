"""Why a script gave no figures, from how it ended and the end of its log. Pure.

A launcher turns every end of a rank into exit code 1, so the log says more than the code does. Words in a log count
only where there are no figures: a script may try a batch, run out of memory, and go on with a smaller one.
"""

import re

from bench.diagnosis.classify import FULL_DISK
from bench.diagnosis.oom_words import abort_source, bytes_asked, find, line
from bench.records.outcome import Failed, Fault, Hang, Oom
from bench.records.script import ScriptEnd

LAST_LINES = 20
_PREFIX = re.compile(r"^\[(?:default|rank)\d+\]:\s?", re.MULTILINE)
"""Before each line of a rank's error, from torch."""
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b")
_LAUNCHERS = re.compile(r"\b(?:ChildFailedError|CalledProcessError)\b")
"""A launcher's own error, after that of its rank."""
_ABORT = re.compile(r"^(?:terminate called .*(?:\n +what\(\): .*)?|FATAL: .*|Fatal Python error: .*)$", re.MULTILINE)
"""What libstdc++, glibc and Python say before they abort (SIGABRT)."""
_UNDER_LIMIT = line(r"could not create a primitive$|can't start new thread$|Resource temporarily unavailable$")
"""What says under a memory limit that memory ran out, and may mean another fault without one."""
_FAULTS: tuple[tuple[Fault, re.Pattern[str]], ...] = (
    ("missing_package", line(r"No module named '|cannot import name '")),
    ("disk", re.compile(FULL_DISK)),
    ("rendezvous", re.compile(r"address already in use|EADDRINUSE|RendezvousTimeout", re.IGNORECASE)),
)


def failure(end: ScriptEnd, no_figures: str, killer: str | None = None) -> Oom | Hang | Failed:
    """The outcome of a script that gave no figures.

    Args:
        no_figures: what is wrong with its result, in words; the reason if it ended well otherwise.
        killer: the kernel's out-of-memory killer and its counter, if it ended a process meanwhile.
    """
    log = _PREFIX.sub("", end.log)
    said = _said(end)
    if oom := _oom(end, log, killer):
        return oom
    if end.cancelled is not None:
        last = said.splitlines()[-1:]
        return Hang(
            reason=end.cancelled + (f": its last line is {last[0][:300]!r}" if last else ": it printed nothing")
        )
    if end.how is None:
        return Failed(fault="ended", rank=None, phase=None, reason=no_figures, evidence=said or None)
    fault: Fault = "killed" if end.signal else "error"
    fault = next((name for name, words in _FAULTS if words.search(log)), fault)
    last = _ABORT.findall(log)[:1] if end.signal else said.splitlines()[-1:]
    reason = f"{end.how}: {' '.join(last[0].split())[:500]}" if last else end.how
    return Failed(fault=fault, rank=end.rank, phase=None, reason=reason, evidence=said or None)


def aborted_at_exit(end: ScriptEnd) -> bool:
    """Whether a thread of torch aborted a process as Python ended, as far as its log shows.

    DistributedDataParallel keeps gloo's threads beyond `destroy_process_group`. One that wants the interpreter as it
    ends is made to leave (`PyThread_exit_thread` in Python's C API), and libstdc++ then aborts with these words.
    """
    return end.signal == "SIGABRT" and "terminate called without an active exception" in end.log


def _oom(end: ScriptEnd, log: str, killer: str | None) -> Oom | None:
    if found := find(log):
        kind, words = found
        asked = bytes_asked(words[0])
        return Oom(rank=end.rank, phase=None, reason=words[0][:1000], source=kind, bytes_asked=asked)
    if end.signal == "SIGABRT" and (source := abort_source(log)):
        return Oom(rank=end.rank, phase=None, reason="native code aborted: an allocation failed", source=source)
    if end.limited and (match := _UNDER_LIMIT.search(log)):
        return Oom(rank=end.rank, phase=None, reason=match[0][:1000], source="system")
    if end.signal == "SIGKILL" and killer is not None:
        return Oom(rank=end.rank, phase=None, reason=f"killed by {killer}", source="kernel")
    return None


def _said(end: ScriptEnd) -> str:
    """The end of the log up to the error; of the rank that ended first, where the lines name theirs."""
    lines = end.log.strip().splitlines()
    own = [text for text in lines if text.startswith(f"[rank{end.rank}]:")] or lines
    plain = [_PREFIX.sub("", text).rstrip() for text in own]
    errors = [index for index, text in enumerate(plain) if _ERROR.match(text) and not _LAUNCHERS.search(text)]
    until = errors[-1] + 1 if errors and end.how is not None else len(plain)
    return "\n".join(plain[max(0, until - LAST_LINES) : until])
