"""What goes wrong becomes an outcome, the sweep goes on, and nothing is left running."""

import os
import signal
import time
from pathlib import Path

import pytest
from harness import Bench, server_states, wait_for

from bench.spool import read_beat

AXES = {"matrix": {"backend": "ddp", "batch": 2}}


def outcomes(bench: Bench) -> list[tuple[str, str]]:
    return [(r.outcome.kind, getattr(r.outcome, "reason", "")) for r in bench.results()]


FAULTS = {"raise": "ValueError: planted", "kill": "killed by SIGKILL"}


def test_one_rank_fails_the_other_is_ended_and_the_sweep_goes_on(bench: Bench) -> None:
    matrix = bench.matrix(matrix={"backend": "ddp", "fault": [*FAULTS, "none"], "batch": 2})
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    *failed, good = bench.results()
    assert good.outcome.kind == "ok"
    for result, says in zip(failed, FAULTS.values(), strict=True):
        assert result.outcome.kind == "failed"
        assert says in result.outcome.reason
        assert result.outcome.rank == 1
    bench.assert_gone()


def test_out_of_memory_stops_the_cell_early_and_stays_in_the_table(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "toy:Toy", "fault": "allocate"}, matrix={"backend": "ddp", "batch": [1, 2]})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert [kind for kind, _ in outcomes(bench)] == ["oom", "skipped"]
    assert "stopped early: batch 1 ran out of memory" in output


def test_memory_limit_is_real(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "width": 4096},
        matrix={"backend": "ddp", "batch": [1]},
        launch={"memory_limit": "256MiB"},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"))
    [(kind, reason)] = outcomes(bench)
    assert kind == "oom"
    assert "allocate" in reason


def test_a_rank_that_never_answers_is_a_hang(bench: Bench) -> None:
    matrix = bench.matrix(
        workload={"name": "toy:Toy"},
        matrix={"backend": "ddp", "fault": ["sleep", "none"], "batch": 2},
        launch={"attempt_timeout_s": 8},
    )
    bench("run", matrix, "--out", str(bench.folder / "run"), expect=1)
    (hang, reason), (good, _) = outcomes(bench)
    assert (hang, good) == ("hang", "ok")
    assert reason.startswith("no result within 8 s")
    bench.assert_gone()


def test_zero3_with_checkpointing_is_skipped_visibly(bench: Bench) -> None:
    matrix = bench.matrix(matrix={"backend": "zero3", "grad_ckpt": [True], "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert outcomes(bench)[0][0] == "skipped"
    assert "ZeRO-3 with gradient checkpointing" in output


def _folder(bench: Bench) -> Path:
    return wait_for(lambda: next((bench.folder / "run/attempts").glob("*/b2"), None))  # type: ignore[return-value]


def _measuring(bench: Bench) -> bool:
    beat = read_beat(_folder(bench), 0)
    return beat is not None and beat.phase == "measure" and beat.step > 2


def _start_slow(bench: Bench, *arguments: str, isolation: str = "fork"):  # type: ignore[no-untyped-def]
    """A run whose first attempt takes long; killed in the middle of its measuring."""
    matrix = bench.matrix(
        workload={"name": "toy:Toy", "sleep_s": 0.05},
        matrix={"backend": ["ddp", "fsdp2"], "batch": 2},
        measure={"warmup_steps": 1, "steps": 60, "phase_steps": 1},
    )
    run = ["run", matrix, "--out", str(bench.folder / "run"), "--isolation", isolation, *arguments]
    process = bench.start(*run)
    wait_for(lambda: _measuring(bench))
    return process, run


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5])
def test_a_run_that_is_killed_while_its_servers_start_leaves_nothing(bench: Bench, after_s: float) -> None:
    process = bench.start("run", bench.matrix(**AXES), "--out", str(bench.folder / "run"))
    wait_for(lambda: len(bench.processes()) >= 4)  # bench, the launcher and two ranks
    time.sleep(after_s)
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)


def test_a_launcher_that_is_killed_at_once_leaves_nothing(bench: Bench) -> None:
    process = bench.start("run", bench.matrix(**AXES), "--out", str(bench.folder / "run"))
    wait_for(lambda: len(bench.processes()) >= 2)
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)


def test_what_a_workload_starts_does_not_outlive_its_attempt(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "untidy:Toy"}, **AXES)
    bench("run", matrix, "--out", str(bench.folder / "run"))
    assert outcomes(bench) == [("ok", "")]
    bench.assert_gone()


def test_a_run_that_is_killed_while_deepspeed_compiles_neither_leaves_anything_nor_blocks_the_next(
    bench: Bench,
) -> None:
    extensions = {"TORCH_EXTENSIONS_DIR": str(bench.folder / "extensions")}
    run = ["run", bench.matrix(matrix={"backend": ["zero2"], "batch": 2}), "--out", str(bench.folder / "run")]
    process = bench.start(*run, **extensions)
    wait_for(lambda: "cc1plus" in bench.names())
    process.kill()
    process.wait()
    bench.assert_gone(within_s=5)
    assert list(bench.folder.glob("extensions/*/lock"))  # torch waits for ever for a file like this
    bench(*run, **extensions)
    assert outcomes(bench) == [("ok", "")]


def test_a_module_that_computes_on_import_is_left_for_own_launches(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "computes:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"), OMP_NUM_THREADS="2")
    assert "computes or starts threads when it is imported" in output
    assert outcomes(bench) == [("ok", "")]


def test_variables_of_another_launcher_change_nothing(bench: Bench) -> None:
    foreign = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "FSDP_IGNORED_MODULES": ".*", "MASTER_PORT": "1"}
    matrix = bench.matrix(matrix={"backend": ["single", "fsdp"], "batch": 2})
    bench("run", matrix, "--out", str(bench.folder / "run"), **foreign)
    single, fsdp = bench.results()
    assert (single.outcome.kind, fsdp.outcome.kind) == ("ok", "ok")
    assert fsdp.outcome.ranks[0].regime.sharded_parameters == fsdp.outcome.ranks[0].regime.parameters  # type: ignore[union-attr]


def test_a_killed_child_is_failed_and_the_sweep_goes_on(bench: Bench) -> None:
    process, _ = _start_slow(bench)
    os.kill(server_states(bench.folder / "run")[1]["child"], signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == 1
    (bad, reason), (good, _) = outcomes(bench)
    assert (bad, good) == ("failed", "ok")
    assert reason == "killed by SIGKILL"


def test_servers_that_initialise_cuda_are_left_for_own_launches(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "inits_cuda:Toy"}, matrix={"backend": "ddp", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"))
    assert "a module of the workload initialises CUDA" in output
    assert outcomes(bench) == [("ok", "")]
    assert bench.results()[0].isolation == "launch"


def test_rerun_measures_failed_attempts_again_and_keeps_the_old_ones(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "toy:Toy", "fault": "raise"}, matrix={"backend": "ddp", "batch": [1, 2]})
    run = ("run", matrix, "--out", str(bench.folder / "run"))
    bench(*run, expect=1)
    assert "2 of them finished before" in bench(*run, expect=1)
    started = time.time()
    bench(*run, "--rerun", "failed", expect=1)
    assert all(f.stat().st_mtime > started for f in (bench.folder / "run/attempts").glob("*/*/result.json"))
    assert len(list((bench.folder / "run/superseded").glob("*/*/result.json"))) == 2
