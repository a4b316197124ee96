"""NUMA nodes in a made-up /sys, and which cores a rank gets."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.machine import numa
from bench.machine.numa import Binding

TWO = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
ALL = range(8)


def machine(root: Path, cpulists: Sequence[str], gpus: dict[str, str]) -> Path:
    for node, cpulist in enumerate(cpulists):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpulist + "\n")
    for address, node in gpus.items():
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node + "\n")
    return root


def test_the_kernel_s_tree_says_which_cores_are_beside_a_gpu(tmp_path: Path) -> None:
    gpus = {"0000:41:00.0": "0", "0001:c1:00.0": "1", "0000:c2:00.0": "-1", "10000:41:00.0": "1"}
    root = machine(tmp_path, ["0-1,4-5", "2-3,6-7", ""], gpus)  # the last has memory alone, as that of a GH200
    assert numa.nodes(root) == {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}
    addresses = ("00000000:41:00.0", "00000001:C1:00.0", "00010000:41:00.0", "00000000:C2:00.0", "00000000:99:00.0", "")
    assert [numa.of_pci(address, root) for address in addresses] == [0, 1, 1, None, None, None]
    assert numa.nodes(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("near", "allowed", "nodes", "bound"),
    [
        ([0, 0, 1, 1], ALL, TWO, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ([1], ALL, TWO, [(1, 4)]),
        ([1, 1, 1, 1], ALL, TWO, [(1, 1)] * 4),
        ([1], [2, 3, 6, 7], TWO, [(1, 2)]),
        ([1], [0, 1, 2, 3, 7], TWO, [None]),  # somebody has chosen cores: it would have one of five
        ([1], [0, 1], TWO, [None]),
        ([0, None], ALL, TWO, [None, None]),
        ([0, 0], ALL, {0: frozenset(ALL)}, [None, None]),
        ([0, 0], ALL, {}, [None, None]),
    ],
)
def test_a_rank_is_bound_where_the_topology_is_known_and_all_of_it_may_be_used(
    near: list[int | None], allowed: Sequence[int], nodes: numa.Nodes, bound: list[tuple[int, int] | None]
) -> None:
    found = [numa.binding(number, near, allowed, nodes) for number in range(len(near))]
    assert found == [one and Binding(one[0], nodes[one[0]] & set(allowed), one[1]) for one in bound]


@pytest.mark.parametrize(
    ("ranks", "nodes", "near"),
    [(4, TWO, [0, 0, 1, 1]), (2, TWO, [0, 1]), (1, TWO, [None]), (3, TWO, [None] * 3), (2, {}, [None] * 2)],
)
def test_ranks_on_a_cpu_are_spread_evenly_or_not_at_all(ranks: int, nodes: numa.Nodes, near: list[int | None]) -> None:
    assert numa.spread(ranks, ALL, nodes) == near


def test_cpus_are_listed_as_linux_does() -> None:
    assert numa.listed({8, 0, 1, 2, 4, 5}) == "0-2,4-5,8"
    assert (numa.node_of({4, 5}, TWO), numa.node_of({3, 4}, TWO)) == (1, None)
