"""What to run beside a search: one page gives one answer."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import CUDA_MACHINE, GIB, MACHINE, in_few_steps, launched, ok, rank, rendered, result, rss, vram, world
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from bench.cli.app import app
from bench.cli.progress import Progress
from bench.records.best import Best, Fastest
from bench.records.cell import Measure
from bench.records.conditions import Conditions
from bench.records.outcome import Ok, Oom, Reported, Result
from bench.records.plan import RunPlan
from bench.records.verdict import Goal, Probe, Stopped, Verdict
from bench.report.advice import advise
from bench.report.missing import Missing
from bench.report.naming import ends
from bench.report.render import markdown
from bench.report.rows import Summary
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.sections import Report
from bench.report.tables.table import Table
from bench.search import next_step
from bench.statistics.verdict import FASTER, TOO_CLOSE
from bench.store.run_folder import Store
from bench.sweep.probe import observation
from bench.units import memory_needed, memory_size

OOM = Oom(rank=0, phase="bwd", reason="x")
ASKED = Measure(warmup_steps=1, steps=12, phase_steps=2)


def measured(batch: int, step_s: float, held: float = 0.5, **changes: Any) -> Result:
    """A full attempt of steps of ``step_s`` that held this share of capacity."""
    return result(ok(*((step_s,) * 12,) * 2, memory=rss(8 * held)), batch=batch, **changes)


def not_weighed() -> Result:
    """A full attempt at batch 4 of which nobody knows the memory."""
    unknown = rss(1.0).model_copy(update={"peak_allocated_bytes": None})
    return result(ok(*((0.1,) * 12,) * 2, memory=unknown), batch=4)


def probe(results: list[Result], **goal: Any) -> Probe:
    """The answers of a search that has seen ``results``."""
    asked = Goal.model_validate(goal)
    found = next_step([seen for one in results if (seen := observation(one))], asked)
    assert isinstance(found, Verdict), found
    return Probe(cell=results[0].attempt.cell, axes=results[0].axes, goal=asked, found=found)


def search(results: list[Result], **goal: Any) -> tuple[Probe, Verdict]:
    """A search that has seen ``results``, and its verdict."""
    asked = probe(results, **goal)
    assert isinstance(asked.found, Verdict)
    return asked, asked.found


def told(results: list[Result], *probes: Probe) -> list[str]:
    """The sentences; an answer and its reasons, the line below it, as one."""
    summary = summarize(results)
    return joined(advice_sentences(summary, advise(summary, probes)))


def joined(lines: list[str]) -> list[str]:
    together: list[str] = []
    for line in lines:
        if together and " Based on " in line:
            together[-1] += f" {line}"
        else:
            together.append(line)
    return together


def test_a_faster_batch_outside_the_search_is_said_to_be_one() -> None:
    searched = [measured(4, 0.1), measured(8, 0.25), result(OOM, measure=ASKED, batch=12)]
    results = [*searched, measured(5, 0.1)]
    asked, verdict = search(results, granularity=4, max_batch=12)
    assert verdict.safe
    assert verdict.safe.batch == 4
    assert told(searched, asked)[0].startswith("train with ddp, batch 4: 80.0 samples/s")
    assert "left this batch out" not in told(searched, asked)[0]
    (line,) = told(results, asked)
    assert line.startswith("train with ddp, batch 5: 100 samples/s")
    assert line.endswith("The search could not try this batch: it tries multiples of 4 up to 12.")


def test_a_batch_that_was_measured_after_the_search_is_said_to_be_one() -> None:
    searched = [
        *(measured(batch, 2 * batch / rate) for batch, rate in {1: 70, 2: 79.5, 4: 80, 6: 79.5, 8: 78}.items()),
        result(OOM, measure=ASKED, batch=9),
    ]
    asked = probe(searched)
    assert told([*searched, measured(5, 0.2)], asked)[0].startswith("train with ddp, batch 4: 80.0 samples/s")
    (line,) = told([*searched, measured(5, 0.1)], asked)
    assert line.startswith("train with ddp, batch 5: 100 samples/s")
    assert line.endswith("It was measured after the search: search again.")
    (again,) = told([*searched, measured(5, 0.1)], probe([*searched, measured(5, 0.1)]))
    assert again.startswith("train with ddp, batch 5: 100 samples/s")
    assert "search again" not in again


def test_why_a_backend_is_not_named() -> None:
    fits = measured(4, 0.1)
    short = in_few_steps(measured(8, 0.1, backend="fsdp"))
    stopped = Probe(cell=short.attempt.cell, axes=short.axes, goal=Goal(), found=Stopped(reason="batch 16 hung"))
    assert told([fits, short], stopped)[1:] == ["fsdp: no batch to recommend: batch 16 hung."]
    assert told([fits, short])[1:] == ["fsdp: no batch was measured in full and without thrashing."]
    slow = measured(8, 0.4, held=0.95, backend="zero2")
    assert told([fits, slow])[1:] == ["zero2: no batch within the headroom was measured."]


def test_what_is_even_beyond_the_headroom_is_not_called_faster() -> None:
    within, beyond = ((0.1, 0.112) * 6, 0.5), ((0.15, 0.26) * 6, 0.95)
    rows = [
        result(ok(*(steps_s,) * 2, memory=rss(8 * held)), batch=batch)
        for batch, (steps_s, held) in {8: within, 16: beyond}.items()
    ]
    first, second = told(rows)
    assert "Too close to call against batch 16 (" in first
    assert second.startswith("or perhaps faster, but beyond the headroom: ddp, batch 16")
    phases_s = (0.005, 0.025, 0.04, 0.01, 0.01, 0.005, 0.005)  # which do not sum to their total
    doubted = ok(*((0.1,) * 12,) * 2, memory=rss(7.6), phases_s=phases_s, totals_s=(0.11, 0.11))
    assert told([measured(4, 0.1), result(doubted, batch=8)])[1].startswith("or perhaps faster, but")


def test_what_ran_out_below_it_keeps_a_batch_out_of_the_advice() -> None:
    results = [measured(4, 0.1), result(OOM, measure=ASKED, batch=8), measured(9, 0.1)]
    assert told(results)[0].startswith("train with ddp, batch 9")
    assert told(results, probe(results, granularity=4))[0].startswith("train with ddp, batch 4")


def test_the_advice_is_the_search_s_also_where_few_steps_had_said_otherwise() -> None:
    """Batch 8 looked fastest for a few steps, and is 2 % behind 4 in full."""
    results = [
        in_few_steps(measured(8, 0.19)),
        measured(8, 0.204),
        measured(4, 0.1),
        result(OOM, measure=ASKED, batch=12),
    ]
    asked, verdict = search(results, granularity=4)
    assert verdict.best == verdict.safe
    assert verdict.best
    assert verdict.best.batch == 4
    assert told(results, asked)[0].startswith("train with ddp, batch 4: 80.0 samples/s")


def test_a_share_is_the_same_wherever_it_is_shown() -> None:
    results = [
        in_few_steps(measured(4, 0.1, held=0.809)),
        measured(4, 0.1, held=0.808),
        result(OOM, measure=ASKED, batch=8),
    ]
    text = rendered(results, [probe(results, granularity=4)])
    assert "80.8 %" in text
    assert "80.9 %" not in text


def test_what_another_launch_may_hold_keeps_a_batch_out_of_the_advice() -> None:
    """Two launches of batch 8 held 84 and 88 % of capacity, so a third may hold more than 90 %."""
    results = [
        in_few_steps(measured(8, 0.2, held=0.84)),
        measured(8, 0.16, held=0.88),
        measured(4, 0.1, held=0.5),
        result(OOM, measure=ASKED, batch=12),
    ]
    asked, verdict = search(results, granularity=4)
    assert verdict.best
    assert verdict.safe
    assert (verdict.best.batch, verdict.safe.batch) == (8, 4)
    assert "peaks of one batch differ by up to 4.0 % of capacity" in verdict.why
    first, second = told(results, asked)
    assert first.startswith("train with ddp, batch 4")
    assert second.startswith("or perhaps faster, but its next launch may exceed the headroom: ddp, batch 8")


def test_later_launches_that_hold_more_than_the_headroom_take_a_safe_batch_out_of_the_advice() -> None:
    results = [measured(8, 0.1, held=0.85), measured(4, 0.06, held=0.5), result(OOM, measure=ASKED, batch=12)]
    asked = probe(results, granularity=4)
    assert told(results, asked)[0].startswith("train with ddp, batch 8")
    later = measured(8, 0.1, held=0.93)
    later = later.model_copy(update={"attempt": later.attempt.model_copy(update={"launch": 2})})
    first, second = told([*results, later], asked)
    assert first.startswith("train with ddp, batch 4")
    assert "beyond the headroom: ddp, batch 8" in second


def test_a_batch_beyond_the_headroom_says_so_even_where_it_is_slower() -> None:
    """It may be closer to the recommended one than the next best one within the headroom."""
    results = [
        measured(4, 0.08, held=0.5),
        measured(8, 0.1, held=0.85),
        measured(12, 0.16, held=0.95),
        result(OOM, measure=ASKED, batch=16),
    ]
    shown = Report(results=results, probes=[probe(results, granularity=4)]).brief
    (table,) = (part for part in shown if isinstance(part, Table))
    remarks = {row[table.headers.index("batch")]: row[table.headers.index("remark")] for row in table.rows}
    assert remarks == {"8": "", "12": "beyond the headroom of 90.0 %", "4": ""}


@given(st.data())
def test_the_advice_is_what_the_search_calls_safe(data: st.DataObject) -> None:
    """Whatever was measured in full at the batches of the search."""
    steps = data.draw(st.lists(st.floats(0.1, 0.12), min_size=4, max_size=4))
    held = sorted(data.draw(st.lists(st.floats(0.3, 1.0), min_size=4, max_size=4)))
    results = [measured(4 * n, 0.04 * n * steps[n - 1], held[n - 1]) for n in range(1, 5)]
    results.append(result(OOM, measure=ASKED, batch=20))
    asked, verdict = search(results, granularity=4)
    first = told(results, asked)[0]
    if verdict.safe:
        assert first.startswith(f"train with ddp, batch {verdict.safe.batch}:")
    else:
        assert first.startswith("nothing was measured that uses at most 90.0 % of memory")


def reported(batch: int, samples_per_s: float, held: float | None, **changes: Any) -> Result:
    """Figures from elsewhere, of which not all give the memory."""
    share = {} if held is None else {"capacity_share_rank_max": held}
    figures = Reported(source="a paper", samples_per_s_global=samples_per_s, figures=share)
    return result(figures, batch=batch, **changes)


def test_a_peak_below_that_before_the_attempt_uses_no_memory() -> None:
    memory = rss(0.0).model_copy(update={"peak_allocated_bytes": -20 * 2**20})
    assert "Uses 0.0 % of memory." in told([result(ok(memory=memory))])[0]


def test_a_row_of_unknown_memory_is_no_more_than_an_alternative() -> None:
    unknown = "memory n/a: it may be beyond the headroom."
    results = [reported(2, 100.0, 0.5), reported(4, 150.0, None), reported(8, 200.0, 0.95)]
    assert [line.partition(" Based")[0] for line in told([*results, reported(2, 50.0, None, backend="fsdp")])] == [
        "train with ddp, batch 2: 100 samples/s, no other setting to recommend was measured. Uses 50.0 % of memory.",
        "or faster, but beyond the headroom: ddp, batch 8: 200 samples/s, uses 95.0 % of memory.",
        f"or ddp, batch 4: 150 samples/s, {unknown}",
        f"or fsdp, batch 2: 50.0 samples/s, {unknown}",
    ]
    assert told([*results[:1], reported(1, 80.0, None)])[1:] == []
    assert [line.partition(":")[0] for line in told(results[1:])] == [
        "nothing was measured that uses at most 90.0 % of memory.",
        "or ddp, batch 8",
        "or ddp, batch 4",
    ]


def test_an_allocated_peak_above_the_headroom_is_beyond_it_whatever_was_reserved() -> None:
    def of(batch: int, samples_per_s: float, allocated_gib: int) -> Result:
        memory = {"peak_allocated_bytes_rank_max": allocated_gib * GIB, "capacity_bytes_rank_min": 80 * GIB}
        figures = Reported(source="a paper", samples_per_s_global=samples_per_s, figures=memory)
        return result(figures, batch=batch, machine=CUDA_MACHINE)

    chosen, beyond = told([of(4, 150.0, 40), of(8, 200.0, 76)])
    assert chosen.startswith("train with ddp, batch 4: 150 samples/s")
    assert "Memory n/a: it may be beyond the headroom." in chosen
    assert "beyond the headroom: ddp, batch 8: 200 samples/s, uses at least 95.0 % of memory." in beyond


def test_figures_without_any_memory_are_advice_all_the_same() -> None:
    (line,) = told([reported(2, 100.0, None), reported(4, 150.0, None)])
    assert line == (
        "train with ddp, batch 4: 150 samples/s, 1.50× that of batch 2 (1.20 to 1.88; holds unless launches vary by"
        " more than 9.0 %). Memory n/a: it may be beyond the"
        " headroom. Based on imported figures: a paper."
    )


def test_a_setting_that_is_no_axis_is_named_wherever_it_tells_cells_apart() -> None:
    """The same matrix, measured again with another attention on the command line."""
    results = [
        measured(batch, step_s, options={"preset": "tiny", "attention": attention})
        for attention, step_s in (("sdpa", 0.2), ("eager", 0.1))
        for batch in (4, 8)
    ]
    first, *_ = told(results)
    assert first.startswith("train with ddp, attention eager, batch 8: 160 samples/s")
    probes = [
        probe([*own, result(OOM, batch=12, options=own[0].attempt.cell.options)], granularity=4)
        for own in (results[:2], results[2:])
    ]
    text = rendered(results, probes)
    assert "| backend | attention | max |" in text
    assert "cell" not in next(line for line in text.splitlines() if line.startswith("| backend | attention | batch"))


def test_a_task_that_is_no_axis_is_named() -> None:
    results = [
        measured(4, step_s, options={"preset": "tiny", "n_obs_history": n}, backend=backend)
        for n, step_s, backend in ((2, 0.1, "ddp"), (6, 0.3, "fsdp"))
    ]
    assert [line.partition(", batch")[0] for line in told(results)] == [
        "For n_obs_history 2: train with ddp",
        "For n_obs_history 6: train with fsdp",
    ]


def test_two_searches_of_one_cell_say_for_which_headroom() -> None:
    results = [measured(1, 0.1, held=0.6), measured(2, 0.15, held=0.8), result(OOM, measure=ASKED, batch=3)]
    probes = [probe(results, headroom=share) for share in (0.9, 0.7)]
    assert [line.partition(" samples/s")[0] for line in told(results, *probes)] == [
        "For headroom 70.0 %: train with ddp, batch 1: 20.0",
        "or faster, but beyond the headroom: ddp, batch 2: 26.7",
        "For headroom 90.0 %: train with ddp, batch 2: 26.7",
    ]
    text = rendered(results, probes)
    assert "| backend | headroom | max |" in text
    assert "Requested: granularity 1, tolerance 1.0 %, max_batch 65536." in text
    assert "| headroom |" not in rendered(results, probes[:1])


def test_a_task_that_was_not_searched_has_its_own_headroom() -> None:
    searched = [measured(1, 0.1, held=0.5), result(OOM, measure=ASKED, batch=2)]
    other = measured(4, 0.1, held=0.8, num_processes=2, mixed_precision="no")
    lines = told([*searched, other], probe(searched, headroom=0.6))
    assert [line.partition(", batch")[0] for line in lines] == [
        "For mixed_precision bf16, headroom 60.0 %: train with ddp",
        "For mixed_precision no, headroom 90.0 %: train with ddp",
    ]


def test_nothing_within_the_headroom_says_what_to_ask_for() -> None:
    results = [measured(16, 0.1, held=0.8), result(OOM, measure=ASKED, batch=32)]
    _, alone = search(results, granularity=16)
    assert "of 1 fresh point at multiples of 16; a smaller granularity compares more batches" in alone.why
    asked, tight = search(results, granularity=16, headroom=0.7)
    assert "within the headroom: try a smaller granularity or a larger headroom" in tight.why
    assert alone.advised == alone.safe
    assert tight.best
    assert tight.advised is None
    assert told(results, asked)[0] == (
        "nothing was measured that uses at most 70.0 % of memory:"
        " search with a smaller granularity or a larger headroom."
    )


def test_a_search_in_which_nothing_fits_says_so() -> None:
    results = [result(OOM, measure=ASKED, batch=4)]
    asked = probe(results, granularity=4).model_copy(update={"needs_bytes": 256 * 2**20 + 1})
    text = rendered(results, [asked])
    assert (
        "## What to run\n\nno batch to recommend: not even 4 fits; a smaller batch may, with a smaller granularity.\n"
        in text
    )
    assert "4 takes 257 MiB a rank" in text
    stopped = asked.model_copy(update={"found": Stopped(reason="batch 4 hung")})
    assert told(results, stopped) == ["no batch to recommend: batch 4 hung."]
    assert told(results) == []


@pytest.mark.parametrize(
    ("missing", "search", "why", "leads"),
    [
        ((4, 8), False, "2 attempts are missing", True),
        ((), True, "1 search has not ended", False),
        ((4,), True, "1 attempt is missing and 1 search has not ended", False),
    ],
)
def test_an_unfinished_run_gives_no_advice(missing: tuple[int, ...], search: bool, why: str, leads: bool) -> None:
    """A search that was stopped once recommended the slowest batch of its own table."""
    cell = Missing(cell_id="zero2-1", axes={"backend": "zero2"}, batches=missing, search=search)
    summary = summarize([measured(4, 0.2)])
    (advice,) = advise(summary)
    lines = advice_sentences(summary, [replace(advice, missing=(cell,))])
    assert lines[0] == f'no advice yet: {why}, see "Not measured"; `bench run MATRIX` goes on.'
    assert [line.startswith("Leading so far: ddp, batch 4: 40.0 samples/s") for line in lines[1:]] == [True] * leads
    launches = replace(cell, search=False, launches=(1, 3))
    few = advice_sentences(summary, [replace(advice, missing=(launches,))])
    assert few[0].startswith("train with ddp, batch 4")


def test_doubts_are_shown_where_they_are_referred_to() -> None:
    apart = result(ok((0.1,) * 3, (0.05,) * 3))
    full, brief = (
        markdown.document(shown) for shown in (Report(results=[apart]).sections, Report(results=[apart]).brief)
    )
    assert "Caution: rank 0's mean step" in full
    assert "## Rows to doubt" in full
    assert brief.startswith("## No sure answer, the leading row is doubted: ddp, batch 2: ")
    assert "## Before you rely on it\n\nddp, batch 2: rank 0's mean step" in brief
    assert "Before you rely on it" not in markdown.document(Report(results=[result()]).brief)


@pytest.mark.parametrize(
    ("n_bytes", "shown", "needed"),
    [
        (320 * 2**20, "320 MiB", "320 MiB"),
        (256 * 2**20 + 1, "256 MiB", "257 MiB"),
        (GIB, "1.00 GiB", "1.00 GiB"),
        (GIB + 1, "1.00 GiB", "1.01 GiB"),
        (8 * GIB, "8.00 GiB", "8.00 GiB"),
    ],
)
def test_what_is_needed_is_rounded_up(n_bytes: int, shown: str, needed: str) -> None:
    assert (memory_size(n_bytes), memory_needed(n_bytes)) == (shown, needed)


@pytest.mark.parametrize(
    ("headroom", "words"), [(0.9, "probed  safe batch 16: 16 fits"), (0.7, "probed  16 fits and 32 does not")]
)
def test_a_search_names_a_batch_as_it_ends_only_within_the_headroom(headroom: float, words: str) -> None:
    said = io.StringIO()
    found = probe(
        [measured(16, 0.1, held=0.8), result(OOM, measure=ASKED, batch=32)], granularity=16, headroom=headroom
    ).found
    with Progress(Console(file=said)) as progress:
        progress.verdict("ddp", found)
    assert words in said.getvalue()


def test_a_search_names_the_safe_batch_where_the_best_one_is_beyond_the_headroom() -> None:
    said = io.StringIO()
    larger = [measured(16, 0.1), measured(32, 0.15, held=0.95), result(OOM, measure=ASKED, batch=48)]
    with Progress(Console(file=said)) as progress:
        progress.verdict("ddp", probe(larger, granularity=16).found)
        progress.verdict("ddp", probe([not_weighed()], max_batch=4, granularity=4).found)
    assert "probed  safe batch 16: 32 fits and 48 does not; 32 is fastest" in said.getvalue()
    assert "probed  best batch 4: " in said.getvalue()


def test_what_it_holds_is_unknown_where_nobody_measured_it() -> None:
    found = probe([not_weighed()], max_batch=4, granularity=4).found
    assert isinstance(found, Verdict)
    assert "; its memory use is unknown" in found.why
    assert Goal(headroom=1.0).remedy == ""


def test_advice_leaves_the_headroom_that_the_search_was_given() -> None:
    full = Ok(ranks=tuple(rank(number, (0.2,) * 3, memory=vram(30, 68)) for number in (0, 1)))
    results = [result(full, machine=CUDA_MACHINE)]
    found = Stopped(reason="x")
    probe = Probe(cell=results[0].attempt.cell, axes={}, goal=Goal(headroom=0.8), found=found)
    assert "train with ddp, batch 2" in rendered(results)
    assert "nothing was measured that uses at most 80.0 % of memory" in rendered(results, [probe])


# The answer


def answer(results: list[Result], *probes: Probe) -> str:
    summary = summarize(results)
    return advice_sentences(summary, advise(summary, probes))[0]


def test_the_answer_is_one_sentence_with_the_next_best_and_what_makes_it_surer() -> None:
    rows = [
        measured(batch, step_s, backend=backend, held=held)
        for backend, batch, step_s, held in (
            ("ddp", 4, 0.1, 0.5), ("ddp", 8, 0.25, 0.7), ("zero2", 4, 0.125, 0.4), ("zero2", 8, 0.4, 0.7),
        )
    ]  # fmt: skip
    assert answer(rows) == (
        "train with ddp, batch 4: 80.0 samples/s, 1.25× that of zero2, batch 4, which may be as fast (0.97 to"
        " 1.61, too close to call). For a surer answer: `bench run MATRIX measure.launches=5`."
    )


def test_of_a_doubted_rival_more_launches_decide_nothing() -> None:
    rival = measured(4, 0.125, backend="zero2")
    quiet = dict.fromkeys(Conditions.model_fields) | {"gpus": (), "others_cpu_share": 0.5}
    busy = rival.model_copy(update={"conditions": Conditions(**quiet)})
    assert answer([measured(4, 0.1), busy]).endswith(
        ". The next best is doubted. Once the cause is gone: `bench run MATRIX --rerun all`."
    )


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((1.0031, 1.048), "1.003 to 1.048"),
        ((0.95, 0.99999), "0.9500 to 1.0000"),
        ((0.9999, 1.05), "1.00 to 1.05"),
        ((0.5, 2e3), "0.50 to over 1000"),
        ((2e3, 3e3), "over 1000"),
    ],
)
def test_an_interval_beside_one_is_not_shown_to_reach_it(interval: tuple[float, float], words: str) -> None:
    assert ends(interval) == words


def test_the_answer_says_that_larger_batches_were_not_tried() -> None:
    assert answer([measured(4, 0.2), measured(8, 0.2)]) == (
        "train with ddp, batch 8: 80.0 samples/s, 2.00× that of batch 4 (1.60 to 2.50; holds unless launches vary by"
        " more than 15.5 %). Larger batches were not tried: `bench probe MATRIX`. For a surer answer: `bench run MATRIX"
        " measure.launches=5`."
    )
    tried = answer([measured(4, 0.2), measured(8, 0.2), result(OOM, measure=ASKED, batch=16)])
    assert "not tried" not in tried
    assert "bench probe" not in tried


def test_the_answer_says_that_the_search_stopped_at_max_batch() -> None:
    results = [measured(4, 0.1), measured(8, 0.15)]
    assert answer(results, probe(results, granularity=4, max_batch=8)) == (
        "train with ddp, batch 8: 107 samples/s, 1.33× that of batch 4 (1.07 to 1.67; holds unless launches vary by"
        " more than 6.4 %). The search stopped at max_batch: `bench probe MATRIX probe.max_batch=16`. For a surer"
        " answer: `bench probe MATRIX measure.launches=5`."
    )
    full = [*results, result(OOM, measure=ASKED, batch=12)]
    assert "max_batch" not in answer(full, probe(full, granularity=4, max_batch=16))


def test_the_answer_from_figures_of_elsewhere_names_no_command() -> None:
    assert answer([reported(2, 100.0, 0.5), reported(2, 80.0, 0.5, backend="fsdp")]) == (
        "train with ddp, batch 2: 100 samples/s, 1.25× that of fsdp, batch 2, which may be as fast (1.00 to 1.56,"
        " too close to call)."
    )
    assert answer([reported(2, 100.0, 0.5)]) == (
        "train with ddp, batch 2: 100 samples/s, no other setting to recommend was measured."
    )


@pytest.mark.parametrize(
    ("samples_per_s", "held", "named"),
    [(90.0, 0.5, False), (90.0, 0.6, False), (90.0, 0.4, True), (90.0, None, True), (120.0, 0.95, True)],
)
def test_an_alternative_is_faster_or_smaller(samples_per_s: float, held: float | None, named: bool) -> None:
    lines = told([reported(2, 100.0, 0.5), reported(2, samples_per_s, held, backend="fsdp")])
    assert lines[0].startswith("train with ddp, batch 2")
    assert any(line.startswith("or ") for line in lines[1:]) == named


# Choices


def cams(**step_s: float) -> list[Result]:
    return [
        measured(4, step, axes={"num_cams": n, "attention": attention})
        for n in (1, 4)
        for attention, step in ((name, s * n) for name, s in step_s.items())
    ]


def test_declared_choices_are_chosen_and_the_other_axes_are_requirements() -> None:
    summary = summarize(cams(sdpa=0.1, eager=0.2))
    lines = {
        names: [line.partition(":")[0] + ":" + line.partition(":")[2].partition(":")[0]
                for line in advice_sentences(summary, advise(summary, choices=frozenset(names)))
                if "train with" in line]
        for names in ((), ("attention",), ("num_cams",), ("attention", "num_cams"))
    }  # fmt: skip
    assert len(lines[()]) == 4
    assert lines["attention",] == [
        "For num_cams 1: train with ddp, attention sdpa, batch 4",
        "For num_cams 4: train with ddp, attention sdpa, batch 4",
    ]
    assert lines["num_cams",] == [
        "For attention sdpa: train with ddp, num_cams 1, batch 4",
        "For attention eager: train with ddp, num_cams 1, batch 4",
    ]
    assert [line.partition(":")[0] for line in lines["attention", "num_cams"]] == [
        "train with ddp, num_cams 1, attention sdpa, batch 4"
    ]


def test_a_report_reads_the_choices_of_its_run_and_adds_what_it_compares(tmp_path: Path) -> None:
    results = cams(sdpa=0.1, eager=0.2)

    def lines(choices: tuple[str, ...], *options: str) -> list[str]:
        store = Store(tmp_path / f"{len(list(tmp_path.iterdir()))}")
        plan = RunPlan(matrix="example", cells=(), choices=choices)
        with store.open(MACHINE, [each.attempt.cell for each in results], "", plan=plan):
            for each in results:
                store.begin(each.attempt)
                store.finish(each)
        done = CliRunner().invoke(app, ["report", "--full", str(store.root), *options])
        assert done.exit_code == 0, done.output
        return [line for line in done.stdout.splitlines() if "train with" in line]

    assert len(lines(())) == 2  # for each num_cams the better attention
    assert len(lines(("num_cams",))) == 2  # for each attention the better num_cams
    (one,) = lines((), "--compare", "num_cams")
    assert one.startswith("- train with ddp, num_cams 1, attention sdpa, batch 4")
    (one,) = lines(("num_cams",), "--compare", "attention")
    assert one.startswith("- train with ddp, num_cams 1, attention sdpa, batch 4")


STEADY, NOISY = (0.1, 0.1001, 0.0999) * 4, (0.06, 0.16, 0.1) * 4


def test_advice_says_what_is_undecided_whichever_the_reference_is() -> None:
    slow = tuple(2 * step_s for step_s in STEADY)
    results = [
        result(ok(slow, slow)),
        result(ok(NOISY, NOISY, backend="fsdp"), backend="fsdp"),
        result(ok(STEADY, STEADY, backend="zero2"), backend="zero2"),
    ]
    summary = summarize(results)
    (advice,) = advise(summary)
    (pair,) = advice.undecided
    assert pair.reference.settings["backend"] == "fsdp"
    first, *others = joined(advice_sentences(summary, [advice]))
    assert first.startswith("train with zero2, batch 2: 40.0 samples/s")
    assert re.search(
        r" 1\.07× that of fsdp, batch 2, which may be as fast \(0\.\d\d to 1\.\d\d, too close to call\)", first
    )
    assert "Undecided" not in first  # once is enough
    assert not any("ndecided" in line for line in others)


def test_the_answer_of_best_leads_also_where_another_mean_is_higher() -> None:
    lucky = result(ok((0.099,) * 12, (0.0985,) * 12, backend="fsdp"), backend="fsdp")
    expected = result(ok((0.104,) * 12, (0.1041,) * 12))
    answer = Fastest(
        task="",
        cell=expected.attempt.cell.id,
        name="ddp, batch 2",
        batch_per_rank=2,
        within=0.02,
        settings=2,
        ruled_out={},
    )
    report = Report(
        results=[lucky, expected],
        bests={"run": Best(margin=0.02, confidence=0.95, ended="certified", answers=(answer,))},
    )
    lines = advice_sentences(report.summary, report.advice)
    assert lines[0].startswith("train with ddp, batch 2:")
    assert "no setting of 2 can be more than 2.0 % faster (95 % confidence)" in lines[0]
    assert "--best expects most of it" in lines[1]
    assert [(one.shown.settings["backend"], one.verdict) for one in report.settings] == [
        ("fsdp", "ruled out"),
        ("ddp", "recommended"),
    ]
    without = replace(report, bests={})
    assert advice_sentences(without.summary, without.advice)[0].startswith("train with fsdp, batch 2:")
    far = replace(report, results=[result(ok((0.05,) * 12, (0.05,) * 12, backend="fsdp"), backend="fsdp"), expected])
    first = advice_sentences(far.summary, far.advice)[0]
    assert first.startswith("train with fsdp, batch 2:"), "measured after the certificate, and faster for sure"
    refuted = "ddp, batch 2 was certified, and results now say otherwise"
    assert [refuted in markdown.render(each.sections) for each in (report, far, replace(report, results=[lucky]))] == [
        False,
        True,
        True,
    ]
    assert "no setting of 2" not in markdown.render(far.sections)
    assert "no setting of" not in first


def test_a_switch_of_the_same_backend_is_named_when_it_is_even_and_of_many_the_first() -> None:
    results = [
        launched(result(ok(steps, steps), axes={"attention": name}), launch)
        for name in "abcdefgh"
        for launch, steps in enumerate((STEADY, [1.0001 * step_s for step_s in STEADY], STEADY), 1)
    ]
    summary = summarize(results)
    (line,) = joined(advice_sentences(summary, advise(summary)))
    assert ", even with ddp, attention b, batch 2 (1.00×, 1.00 to 1.00)" in line
    assert "Even with ddp, attention c, batch 2 (1.00×, 1.00 to 1.00); ddp, attention d" in line
    assert line.endswith("; 1 more.")


@pytest.mark.parametrize(
    ("backend", "grad_ckpt", "step_s", "named"),
    [
        ("zero2", False, 0.0998, "ddp"),  # even: the setting without sharding
        ("ddp", True, 0.0998, "ddp, grad_ckpt off"),  # even: the setting without the switch
        ("zero2", False, 0.05, "zero2"),
    ],
)
def test_of_settings_that_are_even_the_simplest_is_named(
    backend: str, grad_ckpt: bool, step_s: float, named: str
) -> None:
    def launches(name: str, means_s: tuple[float, ...], **axes: bool) -> list[Result]:
        made = [result(ok((each,) * 3, (each,) * 3, backend=name), backend=name, axes=axes) for each in means_s]
        return [launched(each, launch) for launch, each in enumerate(made, 1)]

    others = tuple(step_s * each for each in (1.004, 0.996, 1.0))
    results = launches("ddp", (0.1, 0.1004, 0.0996), grad_ckpt=False)
    summary = summarize([*results, *launches(backend, others, grad_ckpt=grad_ckpt)])
    (advice,) = advise(summary)
    line = advice_sentences(summary, [advice])[0]
    assert line.startswith(f"train with {named}, batch 2: ")
    assert (", even with " in line) == (step_s > 0.09)


def test_advice_says_that_a_row_is_doubted() -> None:
    apart = result(ok((0.1,) * 3, (0.05,) * 3, backend="fsdp", memory=rss(2.0)), backend="fsdp", batch=4)
    first, second = told([result(), apart])
    assert first.startswith("no sure answer, the leading row is doubted: fsdp, batch 4")
    assert "Caution: rank 0's mean step" in first
    assert second.startswith("or ddp, batch 2")
    assert "Caution" not in second


def test_a_backend_without_a_batch_within_the_headroom_is_named() -> None:
    full = world(rank(0, (0.2,) * 3, memory=vram(75, 76)), rank(1, (0.2,) * 3, memory=vram(75, 76)))
    results = [
        result(ok(memory=vram(30, 40)), machine=CUDA_MACHINE),
        result(full, backend="zero2", machine=CUDA_MACHINE),
        result(Oom(rank=0, phase="bwd", reason="x"), backend="fsdp", machine=CUDA_MACHINE),
    ]
    assert told(results)[1:] == [
        "zero2: no batch within the headroom was measured.",
        "fsdp: nothing was measured: oom.",
    ]


def test_at_a_global_batch_the_answer_names_micro_batch_and_accumulation() -> None:
    ddp = [measured(2, 0.4, train={"global_batch": 16}), measured(4, 0.3, train={"global_batch": 16})]
    zero = [
        measured(2, 0.35, backend="zero2", train={"global_batch": 16}),
        measured(8, 0.2, backend="zero2", train={"global_batch": 16}),
    ]
    (first, *_) = told([*ddp, *zero])
    assert first.startswith(
        "At a global batch of 16 on 2 ranks: train with zero2, micro-batch 8, accumulate 1: 80.0 samples/s, 1.50"
    )
    assert "that of ddp, micro-batch 4, accumulate 2 (" in first
    assert "arger batches were not tried" not in first  # none divides it
    shown = rendered([*ddp, *zero])
    assert re.search(r"\| best against best, global batch 16 +\|", shown)
    assert re.search(r"\| matched micro-batch 2, global batch 16 +\|", shown)
    assert re.search(r"batch per rank *\| accumulate *\| global batch", shown)


def test_the_tasks_of_a_report_are_judged_together() -> None:
    """One ratio of 1.28 names a winner. Eight of them are too close to call, as in the table of all backends."""

    def pairs(tasks: int) -> Summary:
        cells = [(backend, step_s, n) for n in range(tasks) for backend, step_s in (("ddp", 0.1), ("fsdp", 0.128))]
        steps = {step_s: (step_s,) * 5 for _, step_s, _ in cells}
        return summarize(
            [result(ok(steps[step_s], backend=of), backend=of, axes={"num_cams": n}) for of, step_s, n in cells]
        )

    (alone,) = advise(pairs(1))
    assert (alone.comparisons, alone.rivals[0].ratio.word) == (1, FASTER)
    together, table = advise(pairs(8)), compare_axis(pairs(8)).speed_ups
    assert {task.comparisons for task in together} == {pair.comparisons for pair in table} == {8}
    assert {task.rivals[0].ratio.word for task in together} == {pair.ratio.word for pair in table} == {TOO_CLOSE}
    assert all(task.runner_up and task.runner_up.comparisons == 8 for task in together)


def test_global_batches_are_tasks_of_their_own_and_said_where_steps_accumulate() -> None:
    several = [measured(2, 0.1, train={"global_batch": whole}) for whole in (16, 32)]
    lines = told(several)
    assert [line.partition(":")[0] for line in lines] == [
        "At a global batch of 16 on 2 ranks",
        "At a global batch of 32 on 2 ranks",
    ]
    summary = summarize(several)
    (compared,) = advise(summary, choices=frozenset({"global_batch"}))
    assert not compared.task
    beside = told([*several, measured(2, 0.1, train={"accumulate": 2})])
    assert [line.partition(":")[0] for line in beside][:2] == [line.partition(":")[0] for line in lines]
    one = [measured(2, 0.1 * number, train={"accumulate": number}) for number in (1, 2)]
    (compared,) = advise(summarize(one), choices=frozenset({"accumulate"}))  # `accumulate_sync` applies to one of them
    assert len(compared.cells) == 2
    grown = [measured(2, 0.2, train={"accumulate": 2}), measured(4, 0.3, train={"accumulate": 2})]
    grown += [measured(2, 0.1, backend="fsdp", train={"accumulate": 2})]
    shown = rendered(grown)
    assert re.search(r"batch per rank *\| accumulate *\| global batch", shown)
    assert re.search(r"\| best against best, global batches 16 \(A\) and 8 \(B\) +\|", shown)
    assert re.search(r"\| matched batch 2, global batch 8 +\|", shown)
