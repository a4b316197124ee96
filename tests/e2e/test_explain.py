"""`bench explain` on real ranks: planted causes are the largest bar, and all backends' steps are divided."""

import gzip
import json
from pathlib import Path

import pytest
from harness import ONE_THREAD, Bench, reading

from bench.cli import explain
from bench.explain import shown
from bench.explain.intervals import total
from bench.explain.waterfall import LAUNCH, OVERHEAD, Explained, waterfall
from bench.records.outcome import Result
from bench.store.run_folder import Store

MEASURE = {"warmup_steps": 2, "steps": 3, "phase_steps": 0}
CAUSES = {
    "loader": "waiting for data",
    "gap": "host gaps in forward",
    "all_reduce": "exposed all-reduce in backward",
    "copy": "copies in forward",
    "grad_ckpt": "recomputation in backward",
    "optimizer": "optimizer",
}
"""The largest bar, by what is planted."""


def steps_of(run: Path, results: list[Result]) -> list[Explained]:
    explain.profile(run, results, steps=3)
    return [explain.explained(run, result, result.attempt.cell.slug) for result in results]


def plant_of(result: Result) -> str:
    cell = result.attempt.cell
    if cell.train.optimizer != "adamw":
        return "optimizer"
    return "grad_ckpt" if cell.options["grad_ckpt"] else str(cell.options["plant"])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that this process starts find the workload as `Bench` starts them."""
    monkeypatch.chdir(Path(__file__).parent)
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)


def test_planted_causes_are_the_largest_bar(bench: Bench, here: None, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"backend": "ddp", "batch": 1, "width": 64}
    matrix = bench.matrix(
        workload={"name": "slowed:Planted"},
        matrix={**base, "plant": ["nothing", "loader", "gap", "all_reduce", "copy"], "optimizer": "adamw"},
        include=[
            {**base, "plant": "nothing", "optimizer": "slowed:Slow"},
            {**base, "plant": "nothing", "width": 1024},
            {**base, "plant": "nothing", "width": 1024, "grad_ckpt": True},
        ],
        measure=MEASURE,
        launch={"mixed_precision": "no"},  # bf16 takes a hundred times as long where a CPU has no instructions for it
        train={"max_grad_norm": None},
    )
    run = bench.folder / "run"
    bench("run", matrix, "--out", str(run))
    results = Store(run).results()
    found = {
        (plant_of(result), result.attempt.cell.options["width"]): step
        for result, step in zip(results, steps_of(run, results), strict=True)
    }
    assert len(found) == 8
    assert "8/8 " in capsys.readouterr().err, "the progress counts the profiled cells"
    for cause, bar in CAUSES.items():
        width = 1024 if cause == "grad_ckpt" else 64
        fall = waterfall(found["nothing", width], found[cause, width])
        slower = [one for one in fall.bars if one.difference_s > 0 and one.name not in (OVERHEAD, LAUNCH)]
        assert slower[0].name == bar, (cause, fall.bars)
        assert sum(one.difference_s for one in fall.bars) == pytest.approx(fall.difference_s)
    assert found["loader", 64].pace.rank == 1
    told = reading("explain", "plant=nothing", "plant=gap", "width=64", "optimizer=adamw", str(run), "--format", "md")
    assert "× slower than plant=nothing" in told
    assert "host gaps in forward" in told


BACKENDS = ["ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize("backends", [["ddp", "fsdp2"], pytest.param(BACKENDS, marks=pytest.mark.long)])
def test_steps_of_each_backend_are_divided_and_compared(bench: Bench, here: None, backends: list[str]) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy"}, matrix={"backend": ["single", *backends], "batch": 4}, measure=MEASURE
    )
    run = bench.folder / "run"
    bench("run", matrix, "--out", str(run))
    results = Store(run).results()
    steps = dict(zip(["single", *backends], steps_of(run, results), strict=True))
    for backend, step in steps.items():
        assert len(step.divisions) == (1 if backend == "single" else 2)
        for division in step.divisions:
            assert sum(total(spans) for spans in division.spans.values()) == total(division.windows)
            assert {one.operation for one in division.called} >= (set() if backend == "single" else {"all-reduce"})
            assert all(one.n_bytes is not None for one in division.called), division.called
        assert sum(step.parts_s.values()) + sum(step.corrections_s.values()) == pytest.approx(step.step_s)
        assert step.divisions[0].units["Block"] > 0
        assert "before, in the same processes" in " ".join(shown.sentences(step))  # the profiler's overhead
        assert {"weights", "moments"} <= set(step.memory.parts)
        assert step.planned
    whole, sharded = steps["ddp"].memory, steps["fsdp2"].memory
    assert whole.parts["moments"] == pytest.approx(2 * whole.parts["weights"], rel=0.05)
    assert whole.total_bytes == pytest.approx(sum(steps["ddp"].planned.values()), rel=0.2)
    assert sharded.parts["moments"] == pytest.approx(whole.parts["moments"] / 2, rel=0.2)
    for backend in backends:
        fall = waterfall(steps["ddp"], steps[backend])
        assert sum(one.difference_s for one in fall.bars) == pytest.approx(fall.difference_s)
    content = json.loads(gzip.decompress(explain.traces_of(run, results[1])[1].read_bytes()))
    names = {event["name"] for event in content["traceEvents"]}
    assert {"bench:step", "bench:phase:forward", "bench:phase:bwd", "bench:unit:Block", "bench:wait"} <= names
    assert content["distributedInfo"]["rank"] == 1
    page = bench.folder / "page.html"
    told = reading("explain", "backend=ddp", "backend=fsdp2", str(run), "--format", "md", "--html", str(page))
    assert "## Waterfall" in told
    text = page.read_text()
    assert text.count("<figure") == 3
    assert "rank 1" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "## Collectives of rank" in reading(
        "explain", "--trace", str(explain.traces_of(run, results[1])[0].parent), "--format", "md"
    )


def test_trying_the_advice_confirms_the_setting_that_repairs_a_slow_cell(bench: Bench, here: None) -> None:
    (bench.folder / "own.yaml").write_text("distributed_type: MULTI_GPU\n")
    matrix = bench.matrix(
        name="slow",
        workload={"name": "slowed:Planted", "width": 16},
        matrix={"backend": {"name": "früh", "config_file": "own.yaml"}, "batch": 1},
        measure=MEASURE,
        train={"max_grad_norm": None, "optimizer": "slowed:Slow"},
    )
    run = bench.folder / "slow"
    bench("run", matrix, "--out", str(run))
    told = reading("explain", "backend=früh", str(run), "--try", "--steps", "2", "--format", "md")
    [row] = [line.split("|")[1:-1] for line in told.splitlines() if line.startswith("| optimizer=adamw")]
    bound_ms, gained_ms = float(row[1]), float(row[4])
    assert bound_ms > 200
    assert gained_ms > 100
    assert (bench.folder / "slow-try/matrix.yaml").is_file()
