"""Real traces of A100 training steps, against Holistic Trace Analysis (HTA).

The traces are those of HTA's test data (MIT licence), reduced to kernels, their launches and the named ranges.
`HTA` is what HTA 0.5.0 says of the whole files. Where it is installed, it is asked again.

By default, HTA shortens each event of a trace in nanoseconds to whole microseconds (`round_down_time_stamps` of its
trace_parser), half a microsecond on average at each end. The kernels of the trace of 2 ranks take 43 µs on average, and
their compute then is 2.3 % less than their durations sum to: `test_compute_is_the_sum_of_durations`. So bench agrees
with HTA within 1 % on both traces if HTA is told not to round, or if bench rounds as it does.
"""

import gzip
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.explain import parts, trace
from bench.explain.divide import Division, divide
from bench.explain.intervals import total
from bench.explain.trace import Event, Trace

HERE = Path(__file__).parent
HTA = {
    "a100_8ranks_rank3_training": (62_119, 234_760, 86_525, 47.03),
    "a100_2ranks_rank0_training": (338_781, 75_169, 21_636, 14.31),
}
"""Idle, compute and other kernels in microseconds, and the percentage of communication hidden behind compute."""


def read(name: str) -> Trace:
    return trace.read(HERE / f"{name}.json.gz")


IDLE = (parts.GAP, parts.DATA)


def figures(division: Division) -> tuple[float, float, float, float]:
    """The same four of a division. HTA ends with the last kernel; a division with the first one of the next step."""
    took = {part: time * division.steps / 1e3 for part, time in division.parts.items()}
    idle = sum(time for part, time in took.items() if part.kind in IDLE)
    last = max(spans[-1][1] for part, spans in division.spans.items() if part.kind not in IDLE)
    idle -= (division.windows[-1][1] - last) / 1e3
    compute = sum(time for part, time in took.items() if part.kind in parts.COMPUTE)
    hidden = 100 * total(division.hidden) / total(division.communication)
    others = sum(time for part, time in took.items() if part.kind not in (*parts.COMPUTE, *IDLE))
    return idle, compute, others, hidden


def rounded(one: Event) -> Event:
    """As HTA rounds: it shortens each event to whole microseconds, unless told not to."""
    start = math.ceil(one.start / 1000) * 1000
    return one._replace(start=start, end=max(start, math.floor(one.end / 1000) * 1000))


@pytest.mark.parametrize("name", HTA)
def test_idle_compute_and_communication_are_those_of_hta(name: str) -> None:
    whole = read(name)
    shortened = Trace(
        name=whole.name,
        rank=whole.rank,
        world_size=whole.world_size,
        host=whole.host,
        marks=whole.marks,
        device=[rounded(one) for one in whole.device],
    )
    [division] = divide([shortened])
    assert figures(division) == pytest.approx(HTA[name], rel=0.01)
    [exact] = divide([whole])
    for one in (division, exact):
        assert sum(total(spans) for spans in one.spans.values()) == total(one.windows)


def test_compute_is_the_sum_of_durations_and_that_of_hta_the_sum_of_shortened_ones() -> None:
    """Of the trace in nanoseconds, by hand: its compute kernels are on one stream, one after the other."""
    name = "a100_2ranks_rank0_training"
    events = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))["traceEvents"]
    last_step = max(one["ts"] for one in events if one["name"].startswith("ProfilerStep"))
    launches = [one for one in events if one["cat"] == "cuda_runtime" and one["ts"] < last_step]
    launched = {one["args"]["correlation"] for one in launches}
    kernels = [one for one in events if one["cat"] == "kernel" and one["args"]["correlation"] in launched]
    computing = [one for one in kernels if "nccl" not in one["name"]]
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in computing)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert len({one["args"]["stream"] for one in computing}) == 1
    exact = sum(one["dur"] for one in computing)
    shortened = sum(max(0, math.floor(end) - math.ceil(start)) for start, end in spans)
    _, computed, _, _ = figures(divide([read(name)])[0])
    assert computed == pytest.approx(exact, abs=1)
    assert shortened == pytest.approx(HTA[name][1], abs=1)
    assert exact / shortened == pytest.approx(1.023, abs=0.001)


ASK = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
hidden = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
print("FOUND", row["idle_time(us)"], row["compute_time(us)"], row["non_compute_time(us)"], hidden)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="needs HolisticTraceAnalysis: pip install -e .[hta]"
)
@pytest.mark.parametrize("name", HTA)
def test_hta_says_so_today_without_rounding(name: str, tmp_path: Path) -> None:
    shutil.copy(HERE / f"{name}.json.gz", tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = next(line for line in said.splitlines() if line.startswith("FOUND")).split()[1:]
    [division] = divide([read(name)])
    assert figures(division) == pytest.approx(tuple(map(float, found)), rel=0.01)


def test_collectives_have_their_calls_bytes_and_phase() -> None:
    [division] = divide([read("a100_2ranks_rank0_training")])
    reduced = next(one for one in division.called if one.operation == "all-reduce")
    assert (reduced.phase, reduced.calls, reduced.transfer) == ("backward", 10, None)
    assert reduced.n_bytes == 204_456_256  # 2 steps of the gradients of a ResNet-50 in fp32
    [division] = divide([read("a100_8ranks_rank3_training")])
    assert {one.operation for one in division.called} == {"all-to-all", "all-reduce"}
    assert division.steps == 5


def test_a_trace_of_an_older_profiler_reads_the_same(tmp_path: Path) -> None:
    """Which called kinds of events by other names, and counted in whole microseconds."""
    name = "a100_8ranks_rank3_training"
    content = json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))
    older = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime"}
    for event in content["traceEvents"]:
        event["cat"] = older.get(event["cat"], event["cat"])
    (tmp_path / "old_rank3.json").write_text(json.dumps(content))
    [division], [now] = divide([trace.read(tmp_path / "old_rank3.json")]), divide([read(name)])
    assert division.parts == now.parts


@pytest.mark.long
def test_a_trace_of_200_mb_takes_less_than_2_gib(tmp_path: Path) -> None:
    content = json.loads(gzip.decompress((HERE / "a100_8ranks_rank3_training.json.gz").read_bytes()))
    events = content.pop("traceEvents")
    file, written, turn = tmp_path / "rank3.json", 0, 0
    with file.open("w") as out:
        out.write(json.dumps(content)[:-1] + ', "traceEvents": [{}')
        while written < 200e6:
            for event in events:
                moved = {**event, "ts": event["ts"] + turn * 10**6}
                if "correlation" in event["args"]:
                    moved["args"] = {**event["args"], "correlation": event["args"]["correlation"] + turn * 10**8}
                written += out.write(",\n" + json.dumps(moved, indent=1))
            turn += 1
        out.write("]}")
    code = (
        "import resource, sys; from pathlib import Path; from bench.explain import trace; from bench.explain.divide"
        " import divide; divide([trace.read(Path(sys.argv[1]))]);"
        " print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    peak_bytes = int(subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, check=True).stdout)
    assert peak_bytes < 2 * 2**30
