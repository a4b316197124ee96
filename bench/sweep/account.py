"""What ranks stamped -> where the wall time of their attempt went."""

from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from bench.records.account import END, LAUNCH, Account
from bench.records.phases import Stage
from bench.store.beats import Entry, read_entries


def account_in(folder: Path, ranks: int, began_s: float, ended_s: float | None, read_s: float) -> Account | None:
    """The account of the attempt in ``folder``, by this machine's ``ranks``: other nodes have clocks of their own."""
    entries = [read_entries(folder, rank) for rank in range(ranks)]
    return account_of(entries, began_s, ended_s, read_s)


def account_of(
    entries: Sequence[Sequence[Entry]], began_s: float, ended_s: float | None, read_s: float
) -> Account | None:
    """The account of one attempt; None if a rank left no stamp, or the stamps are not in order.

    Args:
        entries: the stages that each rank entered, one sequence for each rank. All times are by the clock of `Entry`.
        began_s: when bench began with the attempt.
        ended_s: when the last process had ended. None, where that is not known, leaves the last stage out.
        read_s: when bench had read what the ranks left.
    """
    if not all(entries):
        return None
    together = takewhile(_same_stage, zip(*entries, strict=False))
    began: list[tuple[Stage | str, float]] = [(LAUNCH, began_s)]
    began += [(each[0].stage, max(entry.at_s for entry in each)) for each in together]
    if ended_s is not None:
        began += [(END, ended_s), ("", read_s)]
    if not all(earlier <= later for (_, earlier), (_, later) in pairwise([*began, ("", read_s)])):
        return None  # also where a foreign program wrote NaN
    parts_s: dict[str, float] = {}
    for (part, since), (_, until) in pairwise(began):
        parts_s[part] = parts_s.get(part, 0.0) + until - since
    return Account(parts_s=parts_s)


def _same_stage(each: Sequence[Entry]) -> bool:
    return len({entry.stage for entry in each}) == 1
