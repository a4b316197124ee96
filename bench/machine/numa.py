"""NUMA nodes, and the cores beside the device of a rank (Linux). Pure, but for what it reads of /sys."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Nodes = Mapping[int, frozenset[int]]
"""The CPUs of each node; without nodes that have none. Empty where the kernel does not tell."""


class Binding(NamedTuple):
    """Where a rank runs."""

    node: int
    cpus: frozenset[int]
    threads: int
    """Its share of these CPUs, beside the other ranks of the node."""


def nodes(root: Path = Path("/")) -> Nodes:
    found = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        try:
            found[int(folder.name.removeprefix("node"))] = _cpus((folder / "cpulist").read_text())
        except (OSError, ValueError):
            return {}
    return {node: found[node] for node in sorted(found) if found[node]}


def online(root: Path = Path("/")) -> frozenset[int]:
    """The CPUs that are switched on.

    Raises:
        OSError: the kernel does not tell.
    """
    return _cpus((root / "sys/devices/system/cpu/online").read_text())


def of_pci(address: str, root: Path = Path("/")) -> int | None:
    """The node of a device by its PCI address, such as NVML's ``00000000:41:00.0``; None where it is not known."""
    domain, _, rest = address.lower().partition(":")
    try:
        node = int((root / "sys/bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware does not tell


def spread(ranks: int, allowed: Collection[int], nodes: Nodes) -> list[int | None]:
    """The node of each rank of this machine on a CPU: as many on each node; None if they cannot be spread so."""
    usable = sorted(_usable(allowed, nodes))
    if not usable or ranks % len(usable):
        return [None] * ranks
    return [usable[number * len(usable) // ranks] for number in range(ranks)]


def binding(number: int, near: Sequence[int | None], allowed: Collection[int], nodes: Nodes) -> Binding | None:
    """Where one rank of this machine should run; None: wherever it may.

    Only on a machine of several nodes of which this process may use equal parts: else somebody has chosen cores, and a
    rank could lose most of them.

    Args:
        number: of the rank on this machine.
        near: the node of each rank's device, as far as it is known.
        allowed: CPUs that this process may use.
    """
    usable, node = _usable(allowed, nodes), near[number]
    if node is None or node not in usable or None in near:
        return None
    if len(usable) < 2 or len(set(map(len, usable.values()))) > 1:
        return None
    return Binding(node, usable[node], max(1, len(usable[node]) // near.count(node)))


def node_of(cpus: Collection[int], nodes: Nodes) -> int | None:
    """The node of all these CPUs; None if they are of several, or if it is not known."""
    return next((node for node, its in nodes.items() if its.issuperset(cpus)), None)


def listed(cpus: Collection[int]) -> str:
    """As Linux lists CPUs: ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _usable(allowed: Collection[int], nodes: Nodes) -> Nodes:
    return {node: cpus & set(allowed) for node, cpus in nodes.items() if cpus & set(allowed)}


def _cpus(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
