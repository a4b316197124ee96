"""What a process measures of a run that it shares, and what it leaves to the others. Launches are made up here."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from examples import MACHINE
from rich.console import Console
from test_sweep import Ranks, plan, sweep_of

from bench.cli.progress import Progress
from bench.records.cell import Walk
from bench.records.outcome import Failed, Result
from bench.records.plan import CellPlan
from bench.store import tries
from bench.store.jobs import OUT_OF_TIME
from bench.store.run_folder import Store
from bench.sweep.share import OutOfTime, Share

PLANS = [plan("ddp", 1, 2), plan("zero2", 1)]


def shared(root: Path, share: Share, plans: Sequence[CellPlan] = PLANS, fits: int = 4, rerun: Any = None) -> list[str]:
    """The attempts that a sweep of ``plans`` launches."""
    store, ranks = Store(root), Ranks([], fits)
    cells = [one.cell for one in plans]
    with store.open(MACHINE, cells, "", shared=True), Progress(Console(file=io.StringIO())) as progress:
        sweep_of(plans, store, progress, [], ranks, rerun, share=share).run()
    return ranks.events


def results(root: Path) -> dict[str, Result]:
    return {
        result.attempt.slug.partition("-")[0] + result.attempt.slug[-2:]: result for result in Store(root).results()
    }


def test_cells_of_others_are_left_to_them(tmp_path: Path) -> None:
    assert len(shared(tmp_path / "run", Share(takes=lambda slug: slug.startswith("zero2")))) == 1
    assert list(results(tmp_path / "run")) == ["zero2b1"]


def test_the_first_attempt_begins_in_any_case_and_the_next_only_in_time(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime) as stopped:
        shared(tmp_path / "run", Share(left_s=lambda: 0.0))
    assert stopped.value.code == OUT_OF_TIME
    assert list(results(tmp_path / "run")) == ["ddpb1"]
    assert len(shared(tmp_path / "run", Share(left_s=lambda: 1e6))) == 2


def test_a_failure_while_the_job_ends_is_no_result(tmp_path: Path) -> None:
    class Fails(Ranks):
        def run(self, *arguments: Any) -> Any:
            from bench.launch.executor import LaunchResult

            error = "srun was killed by SIGTERM"
            return LaunchResult(ranks=[], isolation="fork", launcher_error=error, silent=silent)

    store = Store(tmp_path / "run")
    for ending, silent in ((True, []), (False, ["n2"]), (False, [])):
        ends = ending or bool(silent)
        with store.open(MACHINE, [one.cell for one in PLANS], "", shared=True):
            progress = Progress(Console(file=io.StringIO()))
            share = Share(is_ending=lambda ending=ending: ending)
            sweep = sweep_of(PLANS, store, progress, [], Fails([], 4), share=share)
            if ends:
                with pytest.raises(SystemExit):
                    sweep.run()
            else:
                sweep.run()
        assert [result.outcome.kind for result in store.results()] == ([] if ends else ["failed"] * 3)


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_attempt_gets_one_more_try(tmp_path: Path, times: int) -> None:
    root = tmp_path / "run"
    store, [first, *_] = Store(root), [plan("ddp", 1)]
    from bench.records.cell import Attempt

    attempt = Attempt(cell=first.cell, batch_per_rank=1)
    for number in range(times):
        with store.open(MACHINE, [first.cell], "", shared=True):
            tries.lose(store.begin(attempt), f"job {number} ended with NODE_FAIL")
    launched = shared(root, Share(), [first])
    [result] = Store(root).results()
    assert result.retried == "infrastructure: job 0 ended with NODE_FAIL"
    if times == 1:
        assert (launched, result.outcome.kind) == (["attempt"], "ok")
    else:
        assert launched == []
        assert isinstance(result.outcome, Failed)
        assert (result.outcome.fault, result.outcome.reason) == ("infrastructure", "job 1 ended with NODE_FAIL")
    assert shared(root, Share(), [first]) == []


def test_what_was_measured_since_the_command_began_is_not_measured_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert len(shared(root, Share())) == 3
    now = datetime.now(UTC)
    assert len(shared(root, Share(began=now + timedelta(hours=1)), rerun="all")) == 3
    assert shared(root, Share(began=now - timedelta(hours=1)), rerun="all") == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_walk_that_is_lost_twice_is_given_up_and_attempts_search_instead(tmp_path: Path, times: int) -> None:
    root, one = tmp_path / "run", plan("ddp", "probe")
    store, walk = Store(root), Walk(cell=one.cell, batches_per_rank=(1,))
    for _ in range(times):
        with store.open(MACHINE, [one.cell], "", shared=True):
            tries.lose(store.begin(walk), "the job ended with NODE_FAIL")
    launched = shared(root, Share(), [one])
    assert ("walk" in launched) == (times == 1)
    found = store.probe(one.cell)
    assert found.found.max_batch_per_rank == 4


def test_who_has_lost_a_cell_to_another_stores_nothing_of_it(tmp_path: Path) -> None:
    held = [True, True, False]
    with pytest.raises(SystemExit):
        shared(tmp_path / "run", Share(holds=lambda _: held.pop(0)), [plan("ddp", 1, 2)])
    assert list(results(tmp_path / "run")) == ["ddpb1"]
