"""The batch search with real out-of-memory errors, checked by separate launches."""

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import uneven
from harness import ROOT, Bench, wait_for
from kept import KeptBench

from bench.records.verdict import Verdict
from bench.store.run_folder import Store
from bench.units import memory_needed

BACKENDS = ("ddp", "fsdp", "zero2")
GRANULARITY = 16
LIMIT = "265MiB"
"""Between 16 samples of 2 MiB, at most 200 MiB with their gradients, and 32, at least 330: machines vary by 30."""
MEASURE = {"warmup_steps": 1, "steps": 3, "phase_steps": 0}
HELD = {"name": "toy:Toy", "held_mib": 2}
"""What a step holds decides here, not what it computes."""


@dataclass(frozen=True)
class Search:
    """A search of three cells that was killed early; the same command then went on."""

    bench: Bench
    command: tuple[str, ...]
    when_killed: dict[Path, int]
    """When each result that the kill had left was written."""
    output: str

    def verdict(self, backend: str) -> Verdict:
        [found] = [probe.found for probe in Store(self.bench.folder / "run").probes() if probe.cell.backend == backend]
        assert isinstance(found, Verdict)
        return found


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    bench = Bench(tmp_path_factory.mktemp("probed"))
    run = bench.folder / "run"
    matrix = bench.matrix(workload=HELD, matrix={"backend": [*BACKENDS]}, measure=MEASURE)
    settings = ("--granularity", str(GRANULARITY), "--memory-limit", LIMIT, "--out", str(run))
    command = ("probe", matrix, *settings)
    process = bench.start(*command)
    wait_for(lambda: list(run.glob("attempts/*/b*/result.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.assert_gone()
    when_killed = {file: file.stat().st_mtime_ns for file in run.glob("attempts/*/b*/result.json")}
    output = bench(*command)
    bench.assert_gone()
    return Search(bench, command, when_killed, output)


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_is_certified(search: Search, backend: str) -> None:
    verdict = search.verdict(backend)
    assert verdict.certificate == "next_fails"
    assert verdict.fails == verdict.max_batch_per_rank + GRANULARITY
    results = [result for result in search.bench.results() if result.attempt.cell.backend == backend]
    kinds = {(result.attempt.batch_per_rank, result.outcome.kind) for result in results}
    assert {(verdict.max_batch_per_rank, "ok"), (verdict.fails, "oom")} <= kinds
    assert verdict.best.confirmed
    assert f"{verdict.max_batch_per_rank} fits and {verdict.fails} does not" in search.output


@pytest.mark.parametrize(
    "backend", [pytest.param("ddp", marks=pytest.mark.long), "fsdp", pytest.param("zero2", marks=pytest.mark.long)]
)
def test_max_holds_in_launches_of_its_own(search: Search, bench: Bench, backend: str) -> None:
    verdict = search.verdict(backend)
    matrix = bench.matrix(
        workload=HELD,
        matrix={"backend": backend, "batch": [verdict.max_batch_per_rank, verdict.fails]},
        launch={"memory_limit": LIMIT},
        measure=MEASURE,
    )
    bench("run", matrix, "--isolation", "launch", "--out", str(bench.folder / "run"))
    assert [result.outcome.kind for result in bench.results()] == ["ok", "oom"]


def test_a_killed_search_repeats_nothing_and_a_finished_one_measures_nothing(search: Search) -> None:
    assert search.when_killed
    assert all(file.stat().st_mtime_ns == written for file, written in search.when_killed.items())
    again = search.bench(*search.command)
    assert "3 cells, 3 attempts; results in" in again
    assert "3/3 zero2  probed" in again
    assert "finished before" not in again


def test_a_limit_too_small_for_the_model_is_said(tmp_path: Path) -> None:
    bench = KeptBench(tmp_path)
    run = bench.folder / "run"
    limit_bytes = 8 * 2**20
    output = bench("probe", "--backend", "ddp", "--memory-limit", "8MiB", "--out", str(run), cwd=ROOT)
    [probe] = Store(run).probes()
    assert probe.found.certificate == "nothing_fits"
    assert probe.needs_bytes > limit_bytes  # how much depends on the CPU: without bf16 instructions, kernels take less
    assert f"not even 1 fits; 1 takes {memory_needed(probe.needs_bytes)} a rank" in output
    assert "no batch to recommend: not even 1 fits." in output


def test_an_answer_holds_for_the_largest_samples_of_the_data_set(tmp_path: Path) -> None:
    """A batch of short samples alone would fit at max_batch; one long sample, late, pads its whole batch."""
    bench = KeptBench(tmp_path)
    settings = {"workload": {"name": "uneven:Uneven"}, "launch": {"num_processes": 1, "memory_limit": LIMIT}}
    search = {"max_batch": 64, "granularity": 8}
    matrix = bench.matrix(matrix={"backend": "single", "batch": "probe"}, probe=search, measure=MEASURE, **settings)
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    [probe] = Store(bench.folder / "run").probes()
    assert probe.found.max_batch_per_rank is not None
    assert probe.found.fails is not None  # as 64 long samples alone hold as much as the limit
    batch = probe.found.safe.batch
    assert f"samples hold 32 to 1,024 values: a batch of the largest, {batch * 1024:,} values, fits;" in output
    assert f"in 3 measured steps, batches held up to {batch * 32:,}" in output
    for number, expected in ((batch, "ok"), (probe.found.fails, "oom")):
        [rank] = whole_training(bench, settings, number, f"whole{number}")
        assert rank == expected


def whole_training(bench: Bench, settings: dict[str, object], batch: int, name: str) -> list[str]:
    """The outcome of a training that takes every sample, in as many steps."""
    steps = -(-uneven.SAMPLES // batch)
    matrix = bench.matrix(
        name, matrix={"backend": "single", "batch": batch}, measure={**MEASURE, "steps": steps}, **settings
    )
    bench("run", matrix, "--out", str(bench.folder / name))
    return [result.outcome.kind for result in bench.results(name)]
