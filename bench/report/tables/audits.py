"""The tables of `bench audit`."""

from collections.abc import Sequence

from bench.audit.collectives import CollectivesVerdict
from bench.audit.dataloader import DataloaderVerdict, Loaded
from bench.audit.params import Group, ParamsVerdict
from bench.report.rows import P95_NEEDS
from bench.report.summary import times
from bench.report.tables.attempts import Table
from bench.units import amount, ms, rate

BUSIEST = 30


def collectives(label: str, verdict: CollectivesVerdict) -> Table:
    """Who asks for how many collectives, by rank."""
    ranks = range(max((len(site.counts) for site in verdict.sites), default=0))
    headers = tuple(f"rank {rank}" for rank in ranks)
    shown = [site for site in verdict.sites if len(set(site.counts)) > 1]
    shown += [site for site in verdict.sites if site not in shown][: max(0, BUSIEST - len(shown))]
    left_out = len(verdict.sites) - len(shown)
    return Table(
        title=label,
        headers=("operation", "asked for in", *headers),
        rows=tuple((site.operation, site.site, *map(str, site.counts)) for site in shown),
        numeric=frozenset(headers),
        bold=frozenset(
            (index, header) for index, site in enumerate(shown) if len(set(site.counts)) > 1 for header in headers
        ),
        notes=(f"{left_out} more places, alike on all ranks.",) if left_out else (),
    )


def dataloader(label: str, loaded: Sequence[Loaded], batch_per_rank: int, verdict: DataloaderVerdict) -> Table:
    """What each rank's loader delivers, and what its batches take."""
    statistics = ("mean ms", "median ms", "p95 ms")
    columns = [f"{part} {statistic}" for part in ("fetch", "to device") for statistic in statistics]
    headers = ("rank", "batches/s", "samples/s", *columns, "start ms")
    speeds = [one.batches_per_s for one in loaded]
    notes = [
        "batches/s: of the whole window, in which fetches and copies follow each other. start ms: until every worker,"
        f" or the rank itself, had delivered its first batch; in no other figure. p95 needs {P95_NEEDS} batches.",
    ]
    if verdict.samples_per_s_global is not None:
        mean = sum(speeds) / len(speeds)
        notes.append(
            f"Over ranks: {rate(min(speeds))} batches/s at least, {rate(mean)} in the mean, {rate(max(speeds))} at"
            f" most. All together: {rate(verdict.samples_per_s_global)} samples/s, when each waits for the slowest."
        )
    rows = []
    for one, speed in zip(loaded, speeds, strict=True):
        found = [times(one.fetch_times_s), times(one.to_device_times_s)]
        shown = [ms(value) for part in found for value in (part.mean_s, part.median_s, part.p95_s)]
        rows.append((str(one.rank), rate(speed), rate(speed * batch_per_rank), *shown, ms(one.start_s)))
    return Table(
        title=f"{label}, batch {batch_per_rank}",
        headers=headers,
        rows=tuple(rows),
        numeric=frozenset(headers),
        notes=tuple(notes),
    )


def params(label: str, verdict: ParamsVerdict, *, zero_grad: bool) -> Table:
    """What is not trained, by module.

    Args:
        zero_grad: list what has a gradient of zero, too; else only say how many there are.
    """
    shown = [group for group in verdict.groups if zero_grad or group.state != "ZERO-GRAD"]
    hidden = sum(group.tensors for group in verdict.groups if group not in shown)
    notes = ["index: in the order of DDP's own error, which counts the parameters that require a gradient."]
    if any(group.state == "ZERO-GRAD" for group in shown):
        notes.append("No optimizer has stepped: behind a gate that starts at zero, gradients are zero at first.")
    if hidden:
        notes.append(f"The gradient of {hidden} more tensors is zero everywhere: --zero-grad lists them.")
    headers = ("tensors", "parameters", "index")
    return Table(
        title=label,
        headers=("state", "name", *headers, "batches"),
        rows=tuple(
            (
                group.state,
                group.name,
                str(group.tensors),
                amount(group.elements),
                _indices(group),
                "" if group.state == "FROZEN" else f"{group.batches} of {verdict.batches}",
            )
            for group in shown
        ),
        numeric=frozenset((*headers, "batches")),
        notes=tuple(notes),
    )


def _indices(group: Group) -> str:
    """``3-7``: a module's own follow each other."""
    if not group.ddp_indices:
        return ""
    first, last = group.ddp_indices[0], group.ddp_indices[-1]
    return str(first) if first == last else f"{first}-{last}"
