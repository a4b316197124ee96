"""The wording of `bench audit`."""

from bench.audit.collectives import CollectivesVerdict
from bench.report.tables import Table

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
