"""All eight backends on the bundled policy: the cells of matrices/backends.yaml, checked in many ways."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median

import pytest
from harness import ONE_THREAD, ROOT, Bench, account_of, ok, reading
from policy import FEW, SMALL, has_own_config, is_checkpointed

from bench.records.account import END, LAUNCH, PARTS
from bench.records.outcome import Result
from bench.records.phases import PHASE_NAMES, Stage
from bench.report.communication import communication
from bench.report.summary import row_of, summarize
from bench.store import spool
from bench.store.run_folder import Store

TWO_RANKS = ("ddp", "fsdp", "fsdp_grad_op", "fsdp2", "zero1", "zero2", "zero3")
SHARDED = ("fsdp", "fsdp_grad_op", "fsdp2", "zero3")


@pytest.fixture(scope="module")
def results(policy_run: Path) -> dict[str, Result]:
    everything = Store(policy_run).results()
    return {
        result.attempt.cell.backend: result
        for result in everything
        if not is_checkpointed(result) and not has_own_config(result)
    }


def test_every_backend_measures_two_real_ranks(results: dict[str, Result]) -> None:
    assert set(results) == {"single", *TWO_RANKS}
    for backend, result in results.items():
        assert len(ok(result).ranks) == (1 if backend == "single" else 2)
        for rank in ok(result).ranks:
            assert rank.regime.world_size == len(ok(result).ranks)
            assert (rank.regime.sharded_parameters > 0) == (backend in SHARDED)
            assert rank.traffic == () if backend == "single" else rank.traffic


def test_precision_regimes_are_those_asked_for(results: dict[str, Result]) -> None:
    for backend, result in results.items():
        for rank in ok(result).ranks:
            fsdp = backend.startswith("fsdp")
            assert rank.regime.weights_dtype == ("float32" if fsdp else "bfloat16")
            assert rank.regime.masters_dtype == rank.regime.optimizer_dtype == "float32"


@pytest.mark.parametrize("backend", [backend for backend in TWO_RANKS if backend != "ddp"] + ["single"])
def test_losses_agree_with_ddp(results: dict[str, Result], backend: str) -> None:
    ddp, other = ok(results["ddp"]).ranks[0].losses, ok(results[backend]).ranks[0].losses
    assert len(ddp) == len(other) == 8 + FEW["phase_steps"]
    relative = median(abs(a - b) / abs(a) for a, b in zip(ddp, other, strict=True))
    absolute = max(abs(a - b) for a, b in zip(ddp, other, strict=True))
    assert relative <= 0.02 or absolute <= 1e-3
    assert len(set(ddp)) > 1


def test_every_rank_reports_the_same_global_loss(results: dict[str, Result]) -> None:
    for result in results.values():
        assert len({rank.losses for rank in ok(result).ranks}) == 1


def test_headline_is_gated_by_the_slowest_rank(results: dict[str, Result]) -> None:
    for result in results.values():
        slowest_s = max(fmean(rank.step_times_s) for rank in ok(result).ranks)
        samples = result.attempt.batch_per_rank * len(ok(result).ranks)
        measured = row_of(result).measured
        assert measured.samples_per_s_global == pytest.approx(samples / slowest_s)


def test_phases_sum_to_the_total(results: dict[str, Result]) -> None:
    for result in results.values():
        for rank in ok(result).ranks:
            assert list(rank.phase_times_s) == [*PHASE_NAMES, "total", "backward_step"]
            # Step by step: the kernel may take the rank off its core just between the last phase's end and the total's.
            totals_s = rank.phase_times_s["total"]
            sums_s = [sum(parts) for parts in zip(*(rank.phase_times_s[phase] for phase in PHASE_NAMES), strict=True)]
            ratios = [sums / total for sums, total in zip(sums_s, totals_s, strict=True)]
            assert median(ratios) == pytest.approx(1, rel=0.02)


def test_the_parts_of_the_wall_time_sum_to_it(results: dict[str, Result]) -> None:
    for backend, result in results.items():
        parts_s = account_of(result).parts_s
        compiled = {Stage.COMPILE} if backend.startswith("zero") else set()
        absent = {Stage.AUDIT, Stage.WALK, Stage.LARGEST, Stage.CHECKPOINT, Stage.COMPILE}
        assert set(parts_s) == set(PARTS) - absent | compiled
        own = ok(result).ranks
        # The rank that enters a window last has all its steps in it.
        assert parts_s[Stage.MEASURE] >= min(sum(rank.step_times_s) for rank in own)
        assert parts_s[Stage.PHASES] >= min(sum(rank.phase_times_s["total"]) for rank in own)
        assert result.wall_s - parts_s[LAUNCH] - parts_s[END] >= max(rank.setup_s + rank.warmup_s for rank in own)


def test_memory_is_each_ranks_own(results: dict[str, Result]) -> None:
    for result in results.values():
        for rank in ok(result).ranks:
            assert 100 * 2**20 < rank.memory.peak_rss_bytes < rank.memory.capacity_bytes


@pytest.mark.parametrize("backend", TWO_RANKS)
def test_the_recorder_confirms_the_formula_of_what_is_sent(results: dict[str, Result], backend: str) -> None:
    (cell,) = summarize([results[backend]]).cells
    operations = {one.operation: one.ratio for one in communication(cell)}
    ratio = pytest.approx(1, rel=0.01)
    assert operations == ({"all_reduce": ratio} if backend == "ddp" else {"all_reduce": ratio, "all_gather": ratio})


def test_run_again_measures_nothing(policy_run: Path, bench: Bench) -> None:
    run = bench.folder / "run"
    shutil.copytree(policy_run, run)
    before = {file: file.stat().st_mtime_ns for file in run.glob("attempts/*/*/result.json")}
    same = [f"workload.{name}={value}" for name, value in SMALL.items()]
    same += [f"measure.{name}={value}" for name, value in FEW.items()]
    same.append("launch.mixed_precision=bf16")
    output = bench("run", "matrices/backends.yaml", *same, "--out", str(run), cwd=ROOT)
    assert "8 of them finished before" in output
    assert before == {file: file.stat().st_mtime_ns for file in run.glob("attempts/*/*/result.json")}


def test_attempt_folder_says_how_to_repeat_it(policy_run: Path, results: dict[str, Result], tmp_path: Path) -> None:
    stored = results["fsdp2"]
    folder = Store(policy_run).folder(stored.attempt)
    assert {"spec.json", "accelerate.yaml", "command.sh", "rank0.json", "rank1.log", "result.json"} <= {
        file.name for file in folder.iterdir()
    }
    environment = {**os.environ, **ONE_THREAD, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", folder / "command.sh", tmp_path], cwd=ROOT, env=environment, check=True)
    again = spool.read_ranks(tmp_path, 2)
    assert [rank.kind for rank in again] == ["ok", "ok"]
    assert again[0].losses == ok(stored).ranks[0].losses  # type: ignore[union-attr]


def test_report_of_the_run(policy_run: Path) -> None:
    output = reading("report", "--full", str(policy_run))
    written = (policy_run / "report-full.md").read_text()
    assert re.sub(r"## [^\n]+\n\n!\[[^\n]+\n\n?", "", written) == output  # the file has the plots too
    assert output.count("**") >= 16
    assert "## Wall time, s" in output
    assert "Under DeepSpeed, the engine runs the optimizer step inside backward" in output
