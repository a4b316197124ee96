"""The batch search with real out-of-memory errors, checked by separate launches."""

import re
import signal

import pytest
from harness import ROOT, Bench, wait_for

from bench.records.verdict import Verdict
from bench.store.run_folder import Probe, Store

BACKENDS = ("ddp", "fsdp", "zero2")
GRANULARITY = 16
"""Samples of some 130 MiB: malloc varies by 10, and no backend's peak is closer than 35 MiB to the limit."""
SETTINGS = ("--granularity", str(GRANULARITY), "--memory-limit", "320MiB")


def found(bench: Bench) -> Probe:
    [probe] = Store(bench.folder / "run").probes()
    return probe


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str]:
    """One search of three cells, and its output."""
    bench = Bench(tmp_path_factory.mktemp("probed"))
    output = bench("probe", "--backend", ",".join(BACKENDS), *SETTINGS, "--out", str(bench.folder / "run"), cwd=ROOT)
    bench.assert_gone()
    return bench, output


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_is_certified_and_holds_in_launches_of_their_own(probed: tuple[Bench, str], backend: str) -> None:
    bench, output = probed
    [verdict] = [probe.found for probe in Store(bench.folder / "run").probes() if probe.cell.backend == backend]
    assert isinstance(verdict, Verdict)
    assert verdict.certificate == "next_fails"
    assert verdict.max_batch_per_rank is not None
    assert verdict.fails == verdict.max_batch_per_rank + GRANULARITY
    kinds = {(r.attempt.batch_per_rank, r.outcome.kind) for r in bench.results() if r.attempt.cell.backend == backend}
    assert {(verdict.max_batch_per_rank, "ok"), (verdict.fails, "oom")} <= kinds
    assert verdict.best is not None
    assert verdict.best.confirmed
    assert f"{verdict.max_batch_per_rank} fits and {verdict.fails} does not" in output
    matrix = bench.matrix(
        workload={"name": "pi07", "preset": "tiny"},
        matrix={"backend": backend, "batch": [verdict.max_batch_per_rank, verdict.fails]},
        launch={"memory_limit": "320MiB"},
        measure={"warmup_steps": 1, "steps": 2, "phase_steps": 0},
    )
    again = f"again-{backend}"
    bench("run", matrix, "--isolation", "launch", "--out", str(bench.folder / again), cwd=ROOT)
    assert [result.outcome.kind for result in bench.results(again)] == ["ok", "oom"]
    bench.assert_gone()


def test_a_killed_probe_goes_on_and_repeats_nothing(bench: Bench) -> None:
    command = ("probe", "--backend", "ddp", *SETTINGS, "--out", str(bench.folder / "run"))
    process = bench.start(*command, cwd=ROOT)
    wait_for(lambda: list((bench.folder / "run/attempts").glob("*/b*/result.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.assert_gone()
    before = {file: file.stat().st_mtime_ns for file in (bench.folder / "run/attempts").glob("*/b*/result.json")}
    bench(*command, cwd=ROOT)
    assert isinstance(found(bench).found, Verdict)
    assert all(file.stat().st_mtime_ns == written for file, written in before.items())
    again = bench(*command, cwd=ROOT)
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
    assert "nothing to train with: not even 1 fits." in output
