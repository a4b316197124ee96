"""Several runs in one report: where they hold the same cell, no answer depends on which is named first."""

import re
from pathlib import Path
from typing import Any

import pytest
from commands import full_report
from examples import MACHINE, claim, doubt_sentences, ok, result, stored, world

from bench.records.best import Best, Fastest
from bench.records.outcome import Oom, Outcome, Result
from bench.records.verdict import Goal, Probe, Verdict
from bench.report import merge_runs
from bench.report.claims import judge_claims
from bench.report.summary import summarize
from bench.report.tables.brief import settings
from bench.report.tables.sections import Report
from bench.search import next_step
from bench.store.run_folder import Store
from bench.sweep.probe import observation

OUT = Oom(rank=0, phase="bwd", reason="out of memory")


def taking(step_s: float, backend: str = "ddp", **changes: Any) -> Result:
    return result(ok((step_s,) * 3, (step_s,) * 3, backend=backend), backend=backend, **changes)


def section(report: str, title: str) -> list[str]:
    """Its lines in one order, whichever run comes first."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", report, re.MULTILINE | re.DOTALL)
    return sorted(found[1].splitlines()) if found else []


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """In the first zero2 is the faster one, in the other ddp."""
    first = [taking(0.1), taking(0.08, "zero2")]
    second = [taking(0.1), taking(0.2, "zero2")]
    return [stored(tmp_path / "first", first), stored(tmp_path / "second", second)]


def test_a_choice_between_runs_has_one_answer(runs: list[Path]) -> None:
    """A ratio compares with a row of the other run, so both runs are one task."""
    report = full_report(*runs, "--compare", "run")
    assert report.count("train with") == report.count("train with zero2, run first, batch 2") == 1


def test_results_are_compared_within_their_run_in_any_order(runs: list[Path], tmp_path: Path) -> None:
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        "- {say: faster, metric: samples_per_s_global, of: {backend: zero2}, against: {backend: ddp},"
        " ratio: {at_least: 1x}}\n"
        "- {say: in one, metric: samples_per_s_global, of: {backend: zero2}, against: {backend: ddp},"
        " where: {run: first}, ratio: {at_least: 1x}}\n"
    )
    one, other = (full_report(*order, "--claims", claims) for order in (runs, runs[::-1]))
    for title in ("What to run", "Which backend is faster", "Claims", "Rows to doubt"):
        assert section(one, title) == section(other, title) != []
    faster = "\n".join(section(one, "Which backend is faster"))
    assert re.search(r"\| first +\| best against best +\| too close to call, zero2 1.25×", faster)
    assert re.search(r"\| second +\| best against best +\| \*\*ddp 2.00×", faster)
    assert "- For run first: train with zero2, batch 2" in one
    assert "- For run second: train with ddp, batch 2" in one
    verdicts = "\n".join(section(one, "Claims"))
    assert re.search(r"faster .*2 results match zero2: choose in .*run \(first, second\) *\| \*\*NOT", verdicts)
    assert re.search(r"in one .*run first.*UNDECIDED", verdicts)
    assert "2 cells are in more than one of these runs, with the run as a column" in one


def test_what_ran_out_in_another_run_is_doubted_where_it_is_recommended(tmp_path: Path) -> None:
    outcomes: list[tuple[str, Outcome]] = [("fits", ok()), ("out", OUT)]
    folders = [stored(tmp_path / name, [taking(0.1, batch=1), result(outcome)]) for name, outcome in outcomes]
    for order in (folders, folders[::-1]):
        report = full_report(*order)
        assert "- For run fits: train with ddp, batch 2" in report
        assert "Caution: batch 2 is oom in run out." in report
        assert re.search(r"\| inaccurate \| ddp, run fits, batch 2 \| batch 2 is oom in run out\.", report)
        assert "- For run out: train with ddp, batch 1" in report


def test_one_runs_thrashing_is_not_the_others() -> None:
    clean, thrashes = ok(), ok()
    retried = thrashes.ranks[0].memory.model_copy(update={"alloc_retries": 1})
    thrashes = thrashes.model_copy(
        update={"ranks": tuple(rank.model_copy(update={"memory": retried}) for rank in thrashes.ranks)}
    )
    results, _ = merge_runs.merge({"a": [result(thrashes)], "b": [result(clean)]}, {})
    assert [cell.best is not None for cell in summarize(results).cells] == [False, True]


def test_a_certificate_of_best_is_of_its_own_run() -> None:
    cells = [taking(0.1), taking(0.101, "zero2")]
    answer = Fastest(
        task="", cell=cells[1].attempt.cell.id, name="zero2", batch_per_rank=2, within=0.02, settings=2, ruled_out={}
    )
    results, _ = merge_runs.merge({"a": cells, "b": cells}, {})
    best = Best(margin=0.02, confidence=0.95, ended="certified", answers=(answer,))
    of_a, of_b = Report(results=results, bests={"a": best}).advice
    assert (of_a.certified is not None, of_b.certified) == (True, None)


def test_a_run_in_which_nothing_fits_has_its_row() -> None:
    results, _ = merge_runs.merge({"a": [taking(0.1)], "b": [result(OUT)]}, {})
    report = Report(results=results)
    found = settings(report.summary, report.advice)
    assert [setting.shown.settings["run"] for setting in found] == ["a", "b"]


def test_runs_of_other_cells_or_other_machines_are_one_set() -> None:
    faster = MACHINE.model_copy(update={"cpu": "Faster CPU"})
    for other in (taking(0.1, "zero2"), taking(0.1, machine=faster)):
        results, _ = merge_runs.merge({"a": [taking(0.1)], "b": [other]}, {})
        assert [list(one.axes) for one in results] == [["backend"], ["backend"]]


def test_a_search_on_another_machine_says_nothing_of_a_run(tmp_path: Path) -> None:
    here = [taking(0.1, batch=1), taking(0.19, batch=2), result(OUT, batch=3)]
    goal = Goal()
    found = next_step([seen for one in here if (seen := observation(one))], goal)
    assert isinstance(found, Verdict)
    searched = stored(tmp_path / "searched", here)
    Store(searched).finish_probe(Probe(cell=here[0].attempt.cell, axes=here[0].axes, goal=goal, found=found))
    larger = MACHINE.model_copy(update={"cpu": "Larger CPU"})
    listed = stored(tmp_path / "listed", [taking(0.2, batch=8, machine=larger)])
    for order in ((searched, listed), (listed, searched)):
        report = full_report(*order)
        assert re.search(r"- For run listed.*: train with ddp, batch 8: 80.0 samples/s", report)
        assert re.search(r"- For run searched.*: train with ddp, batch 2", report)


def test_a_run_whose_name_reads_as_a_number_can_be_named(tmp_path: Path) -> None:
    for name, step_s in (("1", 0.1), ("2", 0.05)):
        stored(tmp_path / name, [taking(step_s), taking(step_s / 2, "zero2")])
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        "- {say: fast, metric: samples_per_s_global, of: {backend: ddp}, where: {run: 2}, value: {at_least: 1}}"
    )
    report = full_report(tmp_path / "1", tmp_path / "2", "--claims", claims, "--reference", "run=2")
    assert "CONFIRMED" in report
    assert "| 2     |" in report or "| 2 " in report


def test_runs_of_one_name_are_called_as_they_were_given(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    assert merge_runs.run_names(folders) == [str(folders[0]), str(folders[1]), "c"]


def test_duplicates_that_no_name_tells_apart_are_all_flagged_and_leave_a_claim_open() -> None:
    twice = [taking(0.1), taking(0.08, "zero2"), taking(0.2, "zero2")]
    for order in (twice, twice[::-1]):
        summary = summarize(order)
        assert (
            sum("zero2, batch 2: is in more than one of these runs" in line for line in doubt_sentences(summary)) == 2
        )
        assert [judged.verdict for judged in judge_claims(summary, [claim()])] == ["NOT TESTED"]


def test_how_they_were_launched_and_their_threads_are_doubts() -> None:
    apart = taking(0.1, "zero2").model_copy(update={"isolation": "launch"})
    words = "Attempts ran in unlike processes, so their setup differs: a fresh fork of a rank server,"
    assert doubt_sentences(summarize([taking(0.1), apart]))[0].startswith(words)
    few = ok()
    more = few.model_copy(update={"ranks": tuple(rank.model_copy(update={"threads": 4}) for rank in few.ranks)})
    found = doubt_sentences(summarize([result(few), result(more, axes={"num_cams": 2})]))
    assert found == ["Results of 2 ranks used different numbers of CPU threads a rank: 1, 4."]
    assert doubt_sentences(summarize([result(few), result(world(more.ranks[0]))])) == []
