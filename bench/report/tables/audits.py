"""The wording of `bench audit`."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bench.audit.collectives import CollectivesVerdict, SiteCount
from bench.audit.dataloader import DataloaderVerdict, Loaded
from bench.audit.params import Group, ParamsVerdict
from bench.report.figures import times
from bench.report.rows import P95_NEEDS, Times
from bench.report.tables.table import Column, Table, table_of
from bench.units import amount, ms, rate

BUSIEST = 30
"""Places that are listed although all ranks agree there."""


def collectives(label: str, verdict: CollectivesVerdict) -> Table:
    """Which place issues how many collectives, by rank."""
    ranks = range(max((len(site.counts) for site in verdict.sites), default=0))
    shown = [site for site in verdict.sites if _differs(site)]
    shown += [site for site in verdict.sites if not _differs(site)][: max(0, BUSIEST - len(shown))]
    left_out = len(verdict.sites) - len(shown)
    return table_of(
        label,
        shown,
        [
            Column[SiteCount]("operation", lambda site: site.operation),
            Column[SiteCount]("issued in", lambda site: site.site),
            *(Column[SiteCount](f"rank {rank}", partial(_count, rank), numeric=True, bold=_differs) for rank in ranks),
        ],
        notes=(f"{left_out} more places with the same counts on all ranks.",) if left_out else (),
    )


def _differs(site: SiteCount) -> bool:
    return len(set(site.counts)) > 1


def _count(rank: int, site: SiteCount) -> str:
    return str(site.counts[rank])


class _Loader(NamedTuple):
    """One rank's loader with its statistics."""

    loaded: Loaded
    batch_per_rank: int
    fetch: Times
    to_device: Times


LOADER_COLUMNS: tuple[Column[_Loader], ...] = (
    Column("rank", lambda loader: str(loader.loaded.rank), numeric=True),
    Column("batches/s", lambda loader: rate(loader.loaded.batches_per_s), numeric=True),
    Column("samples/s", lambda loader: rate(loader.loaded.batches_per_s * loader.batch_per_rank), numeric=True),
    Column("fetch mean ms", lambda loader: ms(loader.fetch.mean_s), numeric=True),
    Column("fetch median ms", lambda loader: ms(loader.fetch.median_s), numeric=True),
    Column("fetch p95 ms", lambda loader: ms(loader.fetch.p95_s), numeric=True),
    Column("to device mean ms", lambda loader: ms(loader.to_device.mean_s), numeric=True),
    Column("to device median ms", lambda loader: ms(loader.to_device.median_s), numeric=True),
    Column("to device p95 ms", lambda loader: ms(loader.to_device.p95_s), numeric=True),
    Column("start ms", lambda loader: ms(loader.loaded.start_s), numeric=True),
)


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
    loaders = [
        _Loader(rank, batch_per_rank, times(rank.fetch_times_s), times(rank.to_device_times_s)) for rank in loaded
    ]
    return table_of(f"{label}, batch {batch_per_rank}", loaders, LOADER_COLUMNS, notes=notes)


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
    columns = [
        Column[Group]("state", lambda group: group.state),
        Column[Group]("name", lambda group: group.name),
        Column[Group]("tensors", lambda group: str(group.tensors), numeric=True),
        Column[Group]("parameters", lambda group: amount(group.elements), numeric=True),
        Column[Group]("index", _indices, numeric=True),
        Column[Group](
            "batches",
            lambda group: "" if group.state == "FROZEN" else f"{group.batches} of {verdict.batches}",
            numeric=True,
        ),
    ]
    return table_of(label, shown, columns, notes=notes)


def _indices(group: Group) -> str:
    """``3-7``: the indices of a module follow each other."""
    if not group.ddp_indices:
        return ""
    first, last = group.ddp_indices[0], group.ddp_indices[-1]
    return str(first) if first == last else f"{first}-{last}"
