"""The search with true out-of-memory, certified by launches of their own."""

import signal

import pytest
from harness import ROOT, Bench, wait_for

from bench.search import Verdict
from bench.store import Probe, Store

# A batch of 8 is some 70 MiB here, several times what malloc varies by.
SETTINGS = ("--granularity", "8", "--memory-limit", "320MiB")


def found(bench: Bench) -> Probe:
    [probe] = Store(bench.folder / "run").probes()
    return probe


@pytest.mark.parametrize("backend", ["ddp", "fsdp", "zero2"])
def test_max_is_certified_and_holds_in_launches_of_their_own(bench: Bench, backend: str) -> None:
    output = bench("probe", "--backend", backend, *SETTINGS, "--out", str(bench.folder / "run"), cwd=ROOT)
    verdict = found(bench).found
    assert isinstance(verdict, Verdict)
    assert verdict.certificate == "next_fails"
    assert verdict.max_batch_per_rank is not None
    assert verdict.fails == verdict.max_batch_per_rank + 8
    kinds = {(r.attempt.batch_per_rank, r.outcome.kind) for r in bench.results()}
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
    bench("run", matrix, "--isolation", "launch", "--out", str(bench.folder / "again"), cwd=ROOT)
    assert [result.outcome.kind for result in bench.results("again")] == ["ok", "oom"]


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
    assert "of them finished before" in bench(*command, cwd=ROOT)


def test_a_limit_too_small_for_the_model_is_said(bench: Bench) -> None:
    output = bench(
        *("probe", "--backend", "ddp", "--memory-limit", "8MiB", "--out", str(bench.folder / "run")), cwd=ROOT
    )
    verdict = found(bench).found
    assert isinstance(verdict, Verdict)
    assert verdict.certificate == "nothing_fits"
    assert "not even 1 fits: it takes 0.1" in output
