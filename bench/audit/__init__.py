"""Audits: the findings of the ranks, and the verdict. The ranks' side, with torch, is bench/runner/audits.py."""

from bench.records.outcome import Failed, Hang, Oom


def unfinished_in_words(ended: Oom | Hang | Failed) -> str:
    """``failed, rank 1 in audit: ValueError: planted``."""
    if isinstance(ended, Hang):
        return f"hang: {ended.reason}"
    at = [f"rank {ended.rank}" if ended.rank is not None else "", f"in {ended.phase}" if ended.phase else ""]
    where = " ".join(part for part in at if part)
    return f"{ended.kind}{', ' if where else ''}{where}: {ended.reason}"
