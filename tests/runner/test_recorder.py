"""What the flight recorder's entries amount to. tests/e2e/test_communication.py reads those of real backends."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench.diagnosis.collectives import DEFAULT_GROUP
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
    assert since is not None
    assert [one["input_sizes"] for one in since] == [[[5]], [[7]]]
    assert [one.payload_bytes for one in recorder.traffic(since) or ()] == [14, 20]
    assert recorder.collectives_since(time.time_ns()) == []


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


def test_without_a_process_group_there_are_none() -> None:
    assert recorder.traffic(recorder.collectives_since(0)) == ()
