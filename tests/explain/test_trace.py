"""Reading traces: streamed, and refused with one sentence."""

import gzip
import json
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.explain import trace

EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": 'a "traceEvents": [ in a name'}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.5, "dur": 2.25},
    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 1, "tid": 1, "ts": 11, "args": {"correlation": 7}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "tid": 2, "ts": 20, "dur": 4, "args": {"stream": 3, "correlation": 7}},
]
WHOLE = {"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": EVENTS, "baseTimeNanoseconds": 1000}


def test_times_are_nanoseconds_of_one_clock_and_kernels_know_their_launch(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(WHOLE, indent=1))
    read = trace.read(tmp_path / "a.json")
    assert (read.rank, read.world_size) == (1, 2)
    assert [(one.name, one.start, one.end) for one in read.host] == [("aten::mm", 11_500, 13_750)]
    assert [(one.name, one.launched, one.thread) for one in read.device] == [("gemm", 12_000, "3")]


def test_a_rank_is_read_from_the_name_where_the_trace_does_not_say(tmp_path: Path) -> None:
    for rank in (3, 0):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": EVENTS}))
    assert [one.rank for one in trace.read_all(trace.find(tmp_path))] == [0, 3]


def test_an_event_across_two_chunks_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(json.dumps(WHOLE))
    expected = trace.read(tmp_path / "a.json")
    for size in (64, 67, 101):
        monkeypatch.setattr(trace, "CHUNK", size)
        assert trace.read(tmp_path / "a.json") == expected


def refusal(file: Path) -> str:
    with pytest.raises(InputError) as caught:
        trace.read_all(trace.find(file))
    return str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_trace_that_is_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    text = json.dumps(WHOLE).encode()
    (tmp_path / "a.json").write_bytes(text[: int(len(text) * share)])
    assert "is cut off" in refusal(tmp_path / "a.json")
    packed = gzip.compress(json.dumps({**WHOLE, "traceEvents": EVENTS * 50}).encode())
    (tmp_path / "b.json.gz").write_bytes(packed[: int(len(packed) * share)])
    assert "is cut off" in refusal(tmp_path / "b.json.gz")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "no list of traceEvents"),
        (b'{"a": 1}', "no list of traceEvents"),
        (b"", "is empty"),
        (b'{"traceEvents": ' + b"[" * 200_000, "is nested too deeply"),
        (b"\xff\xfe\x00", "is not text"),
        (b'{"traceEvents": []}', "holds no operator and no kernel"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert words in refusal(tmp_path / "a.json")


def test_other_json_of_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"kind": "audited"}')
    (tmp_path / "rank1.trace.json.gz").write_bytes(gzip.compress(json.dumps(WHOLE).encode()))
    assert [file.name for file in trace.find(tmp_path)] == ["rank1.trace.json.gz"]


def test_two_traces_of_one_rank_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    assert "holds no trace" in refusal(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(WHOLE))
    assert "is of rank 1, as a.json is" in refusal(tmp_path)


def changed(**fields: object) -> dict[str, object]:
    return {**EVENTS[1], **fields}


@pytest.mark.parametrize(
    "event",
    [
        changed(ts="soon"),
        changed(ts=None),
        changed(ts=float("nan")),
        changed(ts=float("inf")),
        changed(name=5),
        changed(args=[1]),
        {name: value for name, value in EVENTS[1].items() if name != "name"},
        "an event",
        None,
    ],
)
def test_an_event_that_no_profiler_writes_is_refused_with_its_number(event: object, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**WHOLE, "traceEvents": [*EVENTS, event]}))
    assert "event 4 is not as torch.profiler writes it" in refusal(tmp_path / "a.json")


@pytest.mark.parametrize(
    "beside",
    [
        {"baseTimeNanoseconds": "x"},
        {"distributedInfo": {"rank": "abc"}},
        {"distributedInfo": {"rank": None}},
        {"distributedInfo": {"rank": -1}},
        {"distributedInfo": {"rank": 0.5}},
        {"distributedInfo": {"rank": 3, "world_size": 2}},
        {"bench": [1]},
        {"bench": {"collectives": [["all_reduce"]]}},
    ],
)
def test_what_stands_beside_the_events_is_checked(beside: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**WHOLE, **beside}))
    assert "what stands beside the events is not as torch.profiler writes it" in refusal(tmp_path / "a.json")


def test_a_damaged_archive_is_told_from_one_that_is_cut_off(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({**WHOLE, "traceEvents": EVENTS * 50}).encode()))
    packed[20:40] = bytes(20)
    (tmp_path / "a.json.gz").write_bytes(packed)
    assert "is damaged: gzip cannot read it" in refusal(tmp_path / "a.json.gz")


def test_times_may_be_text_durations_missing_and_an_event_without_an_end(tmp_path: Path) -> None:
    events = [changed(ts="10.5", dur="2.25"), changed(dur=None), changed(dur=-1)]
    (tmp_path / "a.json").write_text(json.dumps({**WHOLE, "traceEvents": events}))
    assert [one.end - one.start for one in trace.read(tmp_path / "a.json").host] == [2250, 0]
