"""Ranks that came no further: what each was doing, and a sentence on who keeps whom waiting."""

from collections.abc import Mapping, Sequence

from bench.diagnosis.collectives import DEFAULT_GROUP, Difference, first_difference
from bench.records.hang import Stuck


def explain(ranks: Sequence[Stuck], world_size: int, measured: Sequence[int] = ()) -> str:
    """Who waits where, and for whom: one sentence, for the reason of a hang.

    Args:
        measured: ranks that had done all they were asked for, and have nothing to answer.
    """
    silent = sorted(set(range(world_size)) - {one.rank for one in ranks} - set(measured))
    parted = first_difference({one.rank: one.collectives for one in ranks}) if len(ranks) > 1 else None
    parts = differ(parted) if parted is not None and None not in parted.issued.values() else []
    parts += _grouped({one.rank: _position(one) for one in ranks})
    if measured:
        parts.append(f"{ranks_in_words(sorted(measured))} had finished")
    if silent:
        parts.append(f"{ranks_in_words(silent)} did not answer: stopped, or busy where Python cannot look")
    return "; ".join(parts)


def differ(found: Difference, failed_in: Mapping[int, str] | None = None) -> list[str]:
    """Which ranks asked for what where they part.

    Args:
        failed_in: the place where a rank raised. What it asked for there and was refused, no recorder has.
    """
    places = failed_in or {}
    asked = _grouped(
        {
            rank: f"asked for {one}" if one else f"failed in {places[rank]}" if rank in places else "asked for none"
            for rank, one in found.issued.items()
        }
    )
    group = "" if found.group == DEFAULT_GROUP else f" of group {found.group}"
    return [f"the ranks part at collective {found.number}{group}", *asked]


def _position(one: Stuck) -> str:
    """Where a rank is, from the outside: its collective if it waits in one, else its own code."""
    if one.newest is None:
        return f"is in {one.place}, before any collective"
    if one.waits_at is None:
        return f"is in {one.place}, past collective {one.newest.number}"
    return f"waits at collective {one.waits_at.number}, {one.waits_at}"


def _grouped(words: Mapping[int, str]) -> list[str]:
    """Ranks that do the same are named together."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(words):
        ranks.setdefault(words[rank], []).append(rank)
    return [f"{ranks_in_words(group)} {_said_of(group, what)}" for what, group in ranks.items()]


def _said_of(group: Sequence[int], what: str) -> str:
    verb, _, rest = what.partition(" ")
    plural = {"is": "are", "waits": "wait"}.get(verb, verb)
    return f"{plural} {rest}" if len(group) > 1 else what


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``ranks 0, 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
