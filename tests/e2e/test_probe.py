"""The batch search with real out-of-memory errors, checked by separate launches."""

import re
import signal

import pytest
from harness import ROOT, Bench, wait_for

from bench.records.verdict import Verdict
from bench.store.run_folder import Probe, Store

BACKENDS = ("ddp", "fsdp", "zero2")
GRANULARITY = 16
LIMIT = "265MiB"
"""Between 16 samples of 2 MiB, at most 200 MiB with their gradients, and 32, at least 330: machines vary by 30."""
MEASURE = {"warmup_steps": 1, "steps": 3, "phase_steps": 0}
HELD = {"name": "toy:Toy", "held_mib": 2}
"""What a step holds decides here, not what it computes."""
SETTINGS = ("--granularity", str(GRANULARITY), "--memory-limit", LIMIT)


def searched(bench: Bench, *backends: str) -> tuple[str, ...]:
    """The command that searches for the batch of each backend, into the folder `run`."""
    matrix = bench.matrix(workload=HELD, matrix={"backend": list(backends)}, measure=MEASURE)
    return "probe", matrix, *SETTINGS, "--out", str(bench.folder / "run")


def found(bench: Bench) -> Probe:
    [probe] = Store(bench.folder / "run").probes()
    return probe


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str]:
    """One search of three cells, and its output."""
    bench = Bench(tmp_path_factory.mktemp("probed"))
    output = bench(*searched(bench, *BACKENDS))
    bench.assert_gone()
    return bench, output


def verdict_of(bench: Bench, backend: str) -> Verdict:
    [verdict] = [probe.found for probe in Store(bench.folder / "run").probes() if probe.cell.backend == backend]
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.fixture(scope="module")
def again(probed: tuple[Bench, str]) -> None:
    """What fits and what does not, once more in launches of their own: a run `again-<backend>` each, side by side."""
    bench, _ = probed
    runs = []
    for backend in BACKENDS:
        verdict, name = verdict_of(bench, backend), f"again-{backend}"
        matrix = bench.matrix(
            name,
            workload=HELD,
            matrix={"backend": backend, "batch": [verdict.max_batch_per_rank, verdict.fails]},
            launch={"memory_limit": LIMIT},
            measure=MEASURE,
        )
        runs.append(bench.start("run", matrix, "--isolation", "launch", "--out", str(bench.folder / name)))
    ended = [(run.communicate(timeout=600)[0], run.returncode) for run in runs]
    assert not [output for output, code in ended if code], ended
    bench.assert_gone()


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_is_certified_and_holds_in_launches_of_their_own(
    probed: tuple[Bench, str], again: None, backend: str
) -> None:
    bench, output = probed
    verdict = verdict_of(bench, backend)
    assert verdict.certificate == "next_fails"
    assert verdict.max_batch_per_rank is not None
    assert verdict.fails == verdict.max_batch_per_rank + GRANULARITY
    kinds = {(r.attempt.batch_per_rank, r.outcome.kind) for r in bench.results() if r.attempt.cell.backend == backend}
    assert {(verdict.max_batch_per_rank, "ok"), (verdict.fails, "oom")} <= kinds
    assert verdict.best is not None
    assert verdict.best.confirmed
    assert f"{verdict.max_batch_per_rank} fits and {verdict.fails} does not" in output
    assert [result.outcome.kind for result in bench.results(f"again-{backend}")] == ["ok", "oom"]


def test_a_killed_probe_goes_on_and_repeats_nothing(bench: Bench) -> None:
    command = searched(bench, "ddp")
    process = bench.start(*command)
    wait_for(lambda: list((bench.folder / "run/attempts").glob("*/b*/result.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.assert_gone()
    before = {file: file.stat().st_mtime_ns for file in (bench.folder / "run/attempts").glob("*/b*/result.json")}
    bench(*command)
    assert isinstance(found(bench).found, Verdict)
    assert all(file.stat().st_mtime_ns == written for file, written in before.items())
    again = bench(*command)
    assert "1 cell, 1 attempt; results in" in again
    assert "1/1 ddp  probed" in again
    assert "finished before" not in again


def test_a_limit_too_small_for_the_model_is_said(bench: Bench) -> None:
    output = bench(
        *("probe", "--backend", "ddp", "--memory-limit", "8MiB", "--out", str(bench.folder / "run")), cwd=ROOT
    )
    verdict = found(bench).found
    assert isinstance(verdict, Verdict)
    assert verdict.certificate == "nothing_fits"
    assert re.search(r"not even 1 fits; 1 takes 1\d\d MiB a rank", output)
    assert "no batch to recommend: not even 1 fits." in output
