"""What the flight recorder's entries amount to. tests/e2e/test_communication.py reads those of real backends."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench.observe import flight
from bench.records.hang import DEFAULT_GROUP
from bench.records.rank_outcome import Traffic
from bench.runner import recorder

RECORDED = 2000


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real process group of one rank."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", str(RECORDED))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def entry(name: str, taken: list[list[int]], given: list[list[int]], dtype: str = "BFloat16") -> dict[str, Any]:
    return {
        "profiling_name": name,
        "process_group": (DEFAULT_GROUP, "default_pg"),
        "input_sizes": taken,
        "output_sizes": given,
        "input_dtypes": [dtype] * len(taken),
        "output_dtypes": [dtype] * len(given),
    }


@pytest.mark.parametrize(
    ("name", "operation", "taken", "given", "payload"),
    [
        ("nccl:all_reduce", "all_reduce", [[8]], [[8]], 16),
        ("nccl:_all_gather_base", "all_gather", [[4]], [[8]], 16),
        ("nccl:all_gather_into_tensor_coalesced", "all_gather", [[4], [1]], [[8], [2]], 20),
        ("nccl:_reduce_scatter_base", "reduce_scatter", [[8]], [[4]], 16),
        ("gloo:all_gather", "all_gather", [[4]], [[2, 4]], 16),
        ("nccl:broadcast", "broadcast", [[8]], [[8]], 16),
        ("nccl:all_to_all", "all_to_all", [[8]], [[8]], 16),
    ],
)
@pytest.mark.usefixtures("group")
def test_the_payload_is_the_whole_tensor(
    name: str, operation: str, taken: list[list[int]], given: list[list[int]], payload: int
) -> None:
    library = name.partition(":")[0]
    assert recorder.traffic([entry(name, taken, given)]) == (
        Traffic(library=library, operation=operation, dtype="BFloat16", group_size=1, calls=1, payload_bytes=payload),
    )


@pytest.mark.usefixtures("group")
def test_calls_of_one_kind_count_together() -> None:
    both = [entry("nccl:all_reduce", [[8]], [[8]]), entry("nccl:all_reduce", [[2]], [[2]])]
    barriers = [entry("gloo:barrier", [], []), entry("nccl:all_reduce_barrier", [[1]], [[1]], "Float")]
    (one,) = recorder.traffic([*both, *barriers]) or ()
    assert (one.calls, one.payload_bytes) == (2, 20)


@pytest.mark.usefixtures("group")
def test_what_is_not_known_is_no_figure() -> None:
    assert recorder.traffic(None) is None
    assert recorder.traffic([entry("nccl:all_reduce", [[8]], [[8]], "Float9_e1m7")]) is None
    assert recorder.traffic([entry("nccl:new_thing", [[8]], [[8]])]) is None


@pytest.mark.usefixtures("group")
def test_collectives_of_all_groups_since_a_time() -> None:
    other = dist.new_group([0])
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(4), group=other)
    start_ns = time.time_ns()
    dist.all_reduce(torch.ones(5))
    dist.all_reduce(torch.ones(7, dtype=torch.bfloat16), group=other)
    since = recorder.collectives_since(start_ns)
    assert [one["input_sizes"] for one in since] == [[[5]], [[7]]]
    assert [one.payload_bytes for one in recorder.traffic(since) or ()] == [14, 20]
    assert recorder.collectives_since(time.time_ns()) == []


@pytest.mark.usefixtures("group")
def test_collectives_of_every_group_are_progress() -> None:
    other, before = dist.new_group([0]), flight.issued()
    dist.all_reduce(torch.ones(3), group=other)
    assert flight.issued() == before + 1
    dist.all_reduce(torch.ones(3))
    assert flight.issued() == before + 2


@pytest.mark.usefixtures("group")
def test_collectives_that_the_recorder_has_lost_are_unknown() -> None:
    start_ns = time.time_ns()
    for _ in range(2):
        dist.all_reduce(torch.ones(3))
    (_, last) = recorder.collectives_since(start_ns) or ()
    (newest,) = recorder.collectives_since(last["time_created_ns"]) or ()
    assert newest["record_id"] == last["record_id"]
    for _ in range(RECORDED):
        dist.all_reduce(torch.ones(3))
    assert recorder.collectives_since(start_ns) is None


def dump(*lines: tuple[int, int, str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries as torch's NCCL recorder dumps them: number of the collective, when it was issued, its name, the rest."""
    return [
        {
            "frames": [],
            "record_id": index,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": name,
            "time_created_ns": at_ns,
            "input_sizes": [],
            "input_dtypes": [],
            "output_sizes": [],
            "output_dtypes": [],
            "state": "completed",
            "time_discovered_started_ns": at_ns + 1,
            "time_discovered_completed_ns": at_ns + 2,
            "retired": True,
            "timeout_ms": 600000,
            "is_p2p": False,
            **rest,
        }
        for index, (number, at_ns, name, rest) in enumerate(lines)
    ]


INNER: dict[str, Any] = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
"""A collective that was coalesced with others has no events of its own."""
TWO_STEPS = dump(
    (1, 5, "nccl:all_reduce", {}),  # before the steps, and not timed
    (2, 12, "nccl:_all_gather_base", {"duration_ms": 1.5}),
    (3, 13, "nccl:reduce_scatter_tensor", INNER),
    (3, 14, "nccl:reduce_scatter_tensor", INNER),
    (3, 15, "nccl:coalesced", {"duration_ms": 4.0}),
    (4, 22, "nccl:all_reduce", {"duration_ms": 2.0}),
)


def test_collectives_take_as_long_as_the_recorder_says_coalesced_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "entries", lambda **_: TWO_STEPS)
    assert recorder.times_s([(10, 20), (20, 30)]) == pytest.approx((0.0055, 0.002))
    assert [one.finished for one in recorder.collectives()] == [True] * 6


def test_durations_come_once_the_watchdog_has_retired_a_collective_and_are_else_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "RETIRED_WITHIN_S", 0.2)
    pending = [{**entry, "retired": False} for entry in TWO_STEPS]
    del pending[-1]["duration_ms"]
    looks = iter([pending, pending])
    monkeypatch.setattr(flight, "entries", lambda **_: next(looks, TWO_STEPS))
    assert recorder.times_s([(20, 30)]) == (0.002,)
    monkeypatch.setattr(flight, "entries", lambda **_: pending)
    assert recorder.times_s([(20, 30)]) is None
    assert recorder.times_s([(10, 20)]) == pytest.approx((0.0055,))
    untimed = [{name: it for name, it in entry.items() if name != "duration_ms"} for entry in TWO_STEPS]
    lost = [{**entry, "record_id": entry["record_id"] + 9} for entry in TWO_STEPS[1:]]
    for entries in (untimed, lost):
        monkeypatch.setattr(flight, "entries", lambda found=entries, **_: found)
        assert recorder.times_s([(10, 20)]) is None


@pytest.mark.usefixtures("group")
def test_gloo_times_nothing() -> None:
    assert not recorder.enable_timing()


def test_of_nccl_every_group_that_can_times_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    class Group:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def _enable_collectives_timing(self) -> None:
            if self.kind == "gloo":
                raise RuntimeError("Backend gloo is missing implementation of enableCollectivesTiming.")
            timed.append(self.kind)

    groups = {Group(kind): (kind, None) for kind in ("nccl", "gloo", "nccl of zero")}
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    assert recorder.enable_timing()
    assert timed == ["nccl", "nccl of zero"]


def test_without_a_process_group_there_are_none() -> None:
    assert recorder.traffic(recorder.collectives_since(0)) == ()
    assert flight.issued() == 0
