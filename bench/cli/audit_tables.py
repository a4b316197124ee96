"""The wording of `bench audit`."""

from collections.abc import Sequence
from functools import partial

from bench.audit.collectives import CollectivesVerdict, SiteCount
from bench.audit.dataloader import DataloaderVerdict, Loaded
from bench.audit.params import Group, ParamsVerdict
from bench.report.rows import P95_NEEDS, times
from bench.report.tables.raw_matrix import times_columns
from bench.report.tables.table import Column, Number, Table, of_part, table_of
from bench.units import amount, ms, rate

BUSIEST = 30
"""Places that are listed although all ranks agree there."""


def collectives(label: str, verdict: CollectivesVerdict) -> Table:
    """Which place issues how many collectives, by rank."""
    ranks = range(max((len(site.counts) for site in verdict.sites), default=0))
    sites = sorted(verdict.sites, key=_differs, reverse=True)
    shown = sites[: max(BUSIEST, sum(map(_differs, sites)))]
    left_out = len(sites) - len(shown)
    return table_of(
        label,
        shown,
        [
            Column("operation", lambda site: site.operation),
            Column("issued in", lambda site: site.site),
            *(Number[SiteCount](f"rank {rank}", partial(_count, rank), bold=_differs) for rank in ranks),
        ],
        notes=(f"{left_out} more places with the same counts on all ranks.",) if left_out else (),
    )


def _differs(site: SiteCount) -> bool:
    return len(set(site.counts)) > 1


def _count(rank: int, site: SiteCount) -> str:
    return str(site.counts[rank])


def dataloader(label: str, loaded: Sequence[Loaded], batch_per_rank: int, verdict: DataloaderVerdict) -> Table:
    """What the loader of each rank delivers, and how long a batch takes."""
    speeds = [rank.batches_per_s for rank in loaded]
    notes = [
        "batches/s: over the whole window, in which fetches and copies alternate. start ms: until every worker, or the"
        f" rank itself, has delivered its first batch; in no other figure. p95 needs {P95_NEEDS} batches.",
    ]
    if verdict.samples_per_s_global is not None:
        mean = sum(speeds) / len(speeds)
        notes.append(
            f"Over ranks: minimum {rate(min(speeds))}, mean {rate(mean)}, maximum {rate(max(speeds))} batches/s. All"
            f" ranks together: {rate(verdict.samples_per_s_global)} samples/s, if each waits for the slowest."
        )
    columns: list[Column[Loaded]] = [
        Number("rank", lambda rank: str(rank.rank)),
        Number("batches/s", lambda rank: rate(rank.batches_per_s)),
        Number("samples/s", lambda rank: rate(rank.batches_per_s * batch_per_rank)),
        *of_part(lambda rank: times(rank.fetch_times_s), times_columns("fetch ")),
        *of_part(lambda rank: times(rank.to_device_times_s), times_columns("to device ")),
        Number("start ms", lambda rank: ms(rank.start_s)),
    ]
    return table_of(f"{label}, batch {batch_per_rank}", loaded, columns, notes=notes)


def params(label: str, verdict: ParamsVerdict, *, zero_grad: bool) -> Table:
    """What is not trained, by module.

    Args:
        zero_grad: also list parameters whose gradient is zero; otherwise, only say how many there are.
    """
    shown = [group for group in verdict.groups if zero_grad or group.state != "ZERO-GRAD"]
    hidden = sum(group.tensors for group in verdict.groups if group not in shown)
    notes = ["index: as in DDP's own error message, which counts the parameters that require a gradient."]
    if any(group.state == "ZERO-GRAD" for group in shown):
        notes.append(
            "The audit makes no optimizer step. Parameters behind a gate that starts at zero have zero gradients at"
            " first."
        )
    if hidden:
        notes.append(f"The gradient of {hidden} more tensors is zero everywhere: --zero-grad lists them.")
    columns: list[Column[Group]] = [
        Column("state", lambda group: group.state),
        Column("name", lambda group: group.name),
        Number("tensors", lambda group: str(group.tensors)),
        Number("parameters", lambda group: amount(group.elements)),
        Number("index", _indices),
        Number("batches", lambda group: "" if group.state == "FROZEN" else f"{group.batches} of {verdict.batches}"),
    ]
    return table_of(label, shown, columns, notes=notes)


def _indices(group: Group) -> str:
    """``3-7``: the indices of a module follow each other."""
    if not group.ddp_indices:
        return ""
    first, last = group.ddp_indices[0], group.ddp_indices[-1]
    return str(first) if first == last else f"{first}-{last}"
