"""One fault of each kind, before and around the ranks. tests/faults has the faults of ranks and hosts."""

import time

import pytest
from harness import Bench, account_of
from kept import KeptBench

from bench.records.account import END, LAUNCH
from bench.records.outcome import Outcome
from bench.records.phases import Stage
from bench.store.run_folder import Store

FAULTY = [
    {"backend": "ddp", "fault": "allocate", "batch": [1, 2]},
    {"backend": "ddp", "fault": "raise", "batch": [1, 2]},
    {"backend": "zero3", "optimizer": "none", "batch": 2},
    {"backend": "fsdp", "batch": 2},
]
FOREIGN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "FSDP_IGNORED_MODULES": ".*", "MASTER_PORT": "1"}
"""Variables of another launcher."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str]:
    """A run of the faulty cells, and its output."""
    bench = Bench(tmp_path_factory.mktemp("faulty"))
    output = bench(*command(bench), expect=1, **FOREIGN)
    bench.assert_gone()
    return bench, output


def command(bench: Bench) -> tuple[str, ...]:
    return "run", bench.matrix(matrix={}, include=FAULTY), "--out", str(bench.folder / "run")


def outcomes(bench: Bench, **axes: object) -> list[Outcome]:
    """Of the cells with these axes."""
    return [result.outcome for result in bench.results() if axes.items() <= result.axes.items()]


def test_out_of_memory_stops_the_cell_early_and_stays_in_the_table(ran: tuple[Bench, str]) -> None:
    bench, output = ran
    assert [outcome.kind for outcome in outcomes(bench, fault="allocate")] == ["oom", "skipped"]
    assert "the smaller batch 1 ran out of memory" in output


def test_the_wall_time_of_a_failure_is_accounted_for_too(ran: tuple[Bench, str]) -> None:
    failures = [result for result in ran[0].results() if result.outcome.kind in ("oom", "failed")]
    assert len(failures) == 3
    for failure in failures:
        assert account_of(failure).parts_s.keys() >= {LAUNCH, Stage.JOIN, Stage.SETUP, END}


def test_what_a_backend_refuses_is_skipped_visibly(ran: tuple[Bench, str]) -> None:
    bench, output = ran
    assert [outcome.kind for outcome in outcomes(bench, backend="zero3")] == ["skipped"]
    assert "DeepSpeed's ZeRO needs an optimizer" in output


def test_variables_of_another_launcher_change_nothing(ran: tuple[Bench, str]) -> None:
    [fsdp] = outcomes(ran[0], backend="fsdp")
    assert fsdp.kind == "ok"
    assert fsdp.ranks[0].regime.sharded_parameters == fsdp.ranks[0].regime.parameters


def test_rerun_measures_failed_attempts_again_and_keeps_the_old_ones(ran: tuple[Bench, str]) -> None:
    bench, _ = ran
    store = Store(bench.folder / "run")
    failed = [store.folder(r.attempt) / "result.json" for r in bench.results() if r.axes["fault"] == "raise"]
    assert [outcome.kind for outcome in outcomes(bench, fault="raise")] == ["failed", "failed"]
    assert "6 attempts, 4 of them finished before" in bench(*command(bench), expect=1)
    started = time.time()
    KeptBench(bench.folder)(*command(bench), "--rerun", "failed", expect=1)
    assert all(file.stat().st_mtime > started for file in failed)
    assert len(list((bench.folder / "run/superseded").glob("*/*/result.json"))) == 2


def test_a_module_that_computes_on_import_is_left_for_own_launches(bench: Bench) -> None:
    matrix = bench.matrix(workload={"name": "computes:Toy"}, matrix={"backend": "single", "batch": 2})
    output = bench("run", matrix, "--out", str(bench.folder / "run"), OMP_NUM_THREADS="2")
    assert "computes when it is imported" in output
    [result] = bench.results()
    assert (result.outcome.kind, result.isolation) == ("ok", "launch")
    assert account_of(result).parts_s.keys() >= {LAUNCH, Stage.MEASURE, Stage.DONE, END}
