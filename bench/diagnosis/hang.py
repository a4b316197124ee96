"""Hung ranks: what each was doing, and a sentence on which rank the others wait for."""

from collections.abc import Mapping, Sequence

from bench.diagnosis.collectives import DEFAULT_GROUP, Difference, first_difference
from bench.records.hang import Stuck


def explain(ranks: Sequence[Stuck], world_size: int, measured: Sequence[int] = ()) -> str:
    """One sentence for the reason of a hang: which ranks wait, where, and for which rank.

    Args:
        measured: ranks that had finished, and so did not answer.
    """
    silent = sorted(set(range(world_size)) - {one.rank for one in ranks} - set(measured))
    difference = first_difference({one.rank: one.collectives for one in ranks}) if len(ranks) > 1 else None
    parts = differ(difference) if difference is not None and None not in difference.issued.values() else []
    parts += grouped({one.rank: _position(one) for one in ranks})
    if measured:
        parts.append(f"{ranks_in_words(sorted(measured))} had finished")
    if silent:
        parts.append(f"{ranks_in_words(silent)} did not answer: stopped, or busy in native code")
    return "; ".join(parts)


def differ(difference: Difference, failed_in: Mapping[int, str] | None = None) -> list[str]:
    """What each rank issued at the first collective that differs.

    Args:
        failed_in: by rank, the place where it raised. A collective that was refused is not in its recorder.
    """
    places = failed_in or {}
    issued = grouped(
        {
            rank: f"issued {one}"
            if one
            else f"failed in {places[rank]}"
            if rank in places
            else "issued no such collective"
            for rank, one in difference.issued.items()
        }
    )
    group = "" if difference.group == DEFAULT_GROUP else f" of group {difference.group}"
    return [f"the ranks differ at collective {difference.number}{group}", *issued]


def _position(one: Stuck) -> str:
    """Where a rank is: in a collective if it waits in one, else in its own code."""
    if one.newest is None:
        return f"is in {one.place}, before any collective"
    if one.waits_at is None:
        return f"is in {one.place}, after collective {one.newest.number}"
    return f"waits at collective {one.waits_at.number}, {one.waits_at}"


def grouped(words: Mapping[int, str]) -> list[str]:
    """One phrase for all ranks with the same words."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(words):
        ranks.setdefault(words[rank], []).append(rank)
    return [f"{ranks_in_words(group)} {_said_of(group, what)}" for what, group in ranks.items()]


_VERBS = ("waits", "gathers", "reduces", "needs")


def _said_of(group: Sequence[int], what: str) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"is": "are"}.get(verb) or (verb.removesuffix("s") if verb in _VERBS else verb)
    return f"{plural} {rest}" if len(group) > 1 else what


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
