"""The sources that made a result, as a digest of each file. Pure."""

from collections.abc import Iterable, Mapping

from bench.records.base import Frozen

Sources = dict[str, str]
"""Twelve hex digits of the content's SHA-256, by path below the folder that Python imports from."""


class LastCommand(Frozen):
    """The last `bench run` or `bench probe` in a run's folder; also one that kept all results of earlier sources."""

    at: str
    """ISO 8601, UTC."""
    workload: str
    script: tuple[str, ...] = ()
    """The command of a script; empty without one."""
    sources: Sources
    """What its ranks ran, or would have run."""


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """The files that are not the same in both, those that only one has included."""
    return tuple(sorted(name for name in {*one, *other} if one.get(name) != other.get(name)))


def named(files: Iterable[str]) -> str:
    """``model/policy.py and 2 more files``."""
    first, *more = sorted(files)
    return first + (f" and {len(more)} more file{'s' * (len(more) > 1)}" if more else "")
