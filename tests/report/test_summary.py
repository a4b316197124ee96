"""Reports: numbers recomputed by hand, and what the markup must keep, escape and point out."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from examples import CUDA_MACHINE, MACHINE, cell, mixed, ok, rank, rendered, result, rss, vram, world
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench.records.outcome import Failed, Ok, Oom, Result
from bench.records.phases import PHASE_NAMES
from bench.records.verdict import Goal, Probe, Stopped, Verdict
from bench.report.naming import row_name
from bench.report.render import frame, markdown, terminal
from bench.report.rows import Measured
from bench.report.speedup import compare_axis
from bench.report.summary import row_of, summarize
from bench.report.tables import sections
from bench.report.tables.attempts import MAX_DETAILED, matrix
from bench.report.tables.doubts import doubt_sentences
from bench.report.tables.phases import phases
from bench.report.tables.ranks import ranks
from bench.report.tables.records import records
from bench.report.tables.searches import searches
from bench.report.tables.sections import Choices, Report
from bench.report.tables.speedup import faster
from bench.report.tables.steps import steps

GOLDEN = Path(__file__).parent / "golden"


def measured(outcome: Ok, batch: int = 2) -> Measured:
    found = row_of(result(outcome, batch=batch)).measured
    assert found is not None
    return found


def shown(
    results: Sequence[Result],
    choices: Choices | None = None,
    *,
    width: int = 100,
    color: Literal["standard"] | None = None,
) -> str:
    file = io.StringIO()
    console = Console(width=width, file=file, color_system=color, force_terminal=True, highlight=False)
    for renderable in terminal.render(Report(results=results, choices=choices or Choices()).brief):
        console.print(renderable)
    return file.getvalue()


# Numbers


def test_throughput_is_gated_by_the_slowest_rank() -> None:
    found = measured(ok((0.1, 0.1, 0.1), (0.1, 0.2, 0.3)), batch=4)
    assert found.slowest.rank == 1
    assert found.step_time_s_per_rank == pytest.approx((0.1, 0.2))
    assert found.samples_per_s_global == pytest.approx(4 * 2 / 0.2)


@given(
    times=st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.floats(1e-4, 1e3), min_size=n, max_size=n), min_size=1, max_size=4)
    ),
    batch=st.integers(1, 64),
)
def test_throughput_recomputed_from_the_samples(times: list[list[float]], batch: int) -> None:
    found = measured(ok(*times), batch)
    slowest_s = max(sum(one) / len(one) for one in times)
    assert found.samples_per_s_global == pytest.approx(batch * len(times) / slowest_s)
    assert all(found.step_time_s_rank_max >= mean for mean in found.step_time_s_per_rank)


@pytest.mark.parametrize(("n", "index"), [(3, None), (19, None), (20, 18), (21, 19), (50, 46), (100, 94)])
def test_p95_is_the_sample_that_the_definition_names(n: int, index: int | None) -> None:
    samples = [float(value) for value in range(1, n + 1)]
    found = measured(world(rank(0, samples[::-1]))).slowest.step.p95_s
    assert found == (None if index is None else samples[index])


def test_a_table_of_p95_says_what_it_needs() -> None:
    assert "## Phases, p95 ms" not in rendered([result()])
    few = steps(summarize([result()]))
    assert few.rows[0][few.headers.index("p95 ms")] == "n/a"
    assert "p95 needs 20 steps" in few.notes[0]
    enough = rank(totals_s=(0.1,) * 20)
    assert "p95 needs 20 steps." in phases(summarize([result(world(enough))]), "p95").notes


def test_median_and_mean() -> None:
    step = measured(world(rank(0, (0.1, 0.2, 0.6)))).slowest.step
    assert step.median_s == 0.2
    assert step.mean_s == pytest.approx(0.3)


def test_memory_is_the_worst_ranks_whichever_rank_that_is() -> None:
    found = measured(world(rank(0, memory=vram(30, 40)), rank(1, memory=vram(31, 60)), rank(2, memory=vram(32, 50))))
    assert found.peak_allocated_bytes_rank_max == 32 * 2**30
    assert found.peak_reserved_bytes_rank_max == 60 * 2**30
    assert found.capacity_share_rank_max == pytest.approx(0.75)


def test_memory_is_unknown_when_one_ranks_is() -> None:
    unknown = rss(1).model_copy(update={"peak_rss_bytes": None, "peak_allocated_bytes": None})
    found = measured(world(rank(0, memory=rss(1)), rank(1, memory=unknown)))
    assert found.peak_rss_bytes_rank_max is None
    assert found.capacity_share_rank_max is None


def test_phases_are_those_of_the_slowest_rank_of_the_phase_window() -> None:
    slow = (0.01, 0.02, 0.06, 0.01, 0.01, 0.005, 0.005)
    found = measured(world(rank(0, (0.2, 0.2), totals_s=(0.1, 0.1)), rank(1, (0.1, 0.1), phases_s=slow)))
    assert found.slowest.rank == 0
    assert found.phases is not None
    assert found.phases.rank == 1
    assert found.phases.total.mean_s == pytest.approx(0.12)
    assert found.phases.share("bwd") == pytest.approx(0.5)
    assert sum(found.phases.share(name) for name in PHASE_NAMES) == pytest.approx(1)
    assert found.phases.backward_step.mean_s == pytest.approx(0.06 + 0.01 + 0.01 + 0.005)
    assert found.instrumentation_share == pytest.approx(0.12 / 0.2 - 1)


def test_without_a_phase_window_there_is_no_phase_table() -> None:
    bare = rank(totals_s=())
    results = [result(world(bare))]
    assert measured(world(bare)).phases is None
    assert "## Phases" not in rendered(results)
    assert doubt_sentences(summarize(results)) == []


def test_sharded_share_and_losses() -> None:
    found = measured(ok(backend="fsdp", losses=(2.0, 1.0, 0.25)))
    assert [one.sharded_share for one in found.ranks] == [0.9, 0.9]
    assert (found.losses[0], found.losses[-1]) == (2.0, 0.25)


# Cells, columns and the peak


def test_cells_come_in_order_of_appearance_and_rows_by_batch() -> None:
    results = [result(backend="zero2", batch=8), result(backend="ddp", batch=4), result(backend="zero2", batch=2)]
    summary = summarize(results)
    assert [(row.settings["backend"], row.batch_per_rank) for row in summary.rows] == [
        ("zero2", 2),
        ("zero2", 8),
        ("ddp", 4),
    ]


def test_what_differs_is_a_column_and_what_does_not_is_said_once() -> None:
    summary = summarize([result(axes={"num_cams": n, "attention": "sdpa", "grad_ckpt": n == 1}) for n in (1, 4)])
    assert summary.columns == ("backend", "num_cams", "grad_ckpt")
    assert summary.shared["attention"] == "sdpa"
    assert summary.shared["preset"] == "tiny"
    assert matrix(summary).headers[:4] == ("backend", "num_cams", "grad_ckpt", "batch per rank")
    assert [row[1:3] for row in matrix(summary).rows] == [("1", "on"), ("4", "off")]


def test_an_axis_of_one_run_that_is_an_option_of_another_has_its_value() -> None:
    axis = result(axes={"num_cams": 4, "attention": "sdpa"})
    option = result(backend="zero2", options={"preset": "tiny", "num_cams": 1, "attention": "sdpa"})
    for results in ([axis, option], [option, axis]):
        summary = summarize(results)
        assert {row.settings["num_cams"] for row in summary.rows} == {1, 4}
        assert all(row.settings["attention"] == "sdpa" for row in summary.rows)
        assert {"backend", "num_cams"} == set(summary.columns)
        table = faster(summary, compare_axis(summary, allowed=frozenset({"num_cams"})))
        assert {row[table.headers.index("num_cams")] for row in table.rows} <= {"4 (A), 1 (B)", "1 (A), 4 (B)"}


def test_a_switch_that_is_no_axis_still_tells_cells_apart() -> None:
    assert summarize([result(), result(num_processes=4)]).columns == ("backend", "num_processes")


def test_true_and_one_are_two_values() -> None:
    assert summarize([result(axes={"x": True}), result(axes={"x": 1})]).columns == ("backend", "x")


def test_an_option_that_is_no_axis_still_tells_cells_apart() -> None:
    hidden = [result(options={"preset": "tiny", "hidden": n, "x": 3}) for n in (1, 2)]
    results = [*hidden, result(backend="fsdp")]
    summary = summarize(results)
    assert summary.columns == ("backend", "hidden", "x")
    assert [row_name(summary, row) for row in summary.rows] == [
        "ddp, hidden 1, x 3, batch 2",
        "ddp, hidden 2, x 3, batch 2",
        "fsdp, hidden n/a, x n/a, batch 2",
    ]


def test_what_follows_from_an_axis_is_no_column() -> None:
    """An option that a preset, or an axis of the matrix, decides."""
    results = [result(axes={"preset": name}, options={"preset": name, "width": width}) for name, width in
               (("tiny", 8), ("small", 16))]  # fmt: skip
    assert summarize(results).columns == ("backend", "preset")


def test_cells_that_nothing_named_tells_apart_show_their_id() -> None:
    results = [result(accelerate={"mine": n}) for n in (1, 2)]
    summary = summarize(results)
    assert summary.columns == ("backend", "cell")
    assert row_name(summary, summary.rows[1]) == f"ddp, cell {cell(accelerate={'mine': 2}).id}, batch 2"


def test_the_peak_of_each_cell_is_bold_and_nothing_else() -> None:
    results = [
        result(ok((0.2, 0.2)), batch=8),
        result(ok((0.3, 0.3)), batch=10),
        result(ok((0.5, 0.5)), batch=12),
        result(ok((0.1, 0.1)), batch=1, backend="zero2"),
    ]
    rows = [line for line in rendered(results).splitlines() if re.match(r"\| (ddp|zero2) .*\bok\b", line)]
    assert [re.findall(r"\*\*(.+?)\*\*", row) for row in rows] == [["40"], [], [], ["10"]]


def test_a_thrashing_largest_batch_is_not_the_peak() -> None:
    cells = summarize([result(ok((9.186,)), batch=8), result(ok((19.435,)), batch=12)]).cells
    assert cells[0].best is not None
    assert cells[0].best.batch_per_rank == 8


def test_an_attempt_that_was_not_measured_keeps_its_row_and_its_reason() -> None:
    text, screen = rendered(mixed()), " ".join(shown(mixed()).split())
    for outcome, reason in [
        ("oom", "rank 1 in bwd: can't allocate memory: you tried 7"),
        ("hang", "no result within 60 s: rank 0 in bwd"),
        ("failed", "rank 0 in start: ValueError"),
        ("skipped", "ZeRO-3 with gradient checkpointing"),
    ]:
        assert re.search(rf"^\|.*\| {outcome} +\| {re.escape(reason)}", text, re.MULTILINE), outcome
        assert reason in screen


def test_a_rank_that_nobody_knows_is_not_named() -> None:
    lost = [
        result(Failed(fault="nan_loss", rank=None, phase="measure", reason="the loss is nan")),
        result(Oom(rank=None, phase="bwd", reason="out of memory"), batch=4),
    ]
    assert [row.reason for row in summarize(lost).rows] == [
        "nan loss: in measure: the loss is nan",
        "in bwd: out of memory",
    ]


# Doubts


def test_a_clean_run_raises_no_flag() -> None:
    assert doubt_sentences(summarize([result(ok((0.1 * batch,)), batch=batch) for batch in (1, 2, 4)])) == []


def test_a_published_row_that_cannot_be_right_is_flagged() -> None:
    """ZeRO-2 of the second published model: 5.64 s at batch 8, 5.29 s at batch 16."""
    results = [result(ok((step_s,)), batch=batch, backend="zero2") for batch, step_s in ((8, 5.64), (16, 5.29))]
    assert doubt_sentences(summarize(results)) == [
        "zero2, batch 16: its step (5290 ms) is 6.2 % shorter than that of batch 8 (5640 ms)."
    ]


def test_a_step_is_held_against_every_smaller_batch() -> None:
    results = [result(ok((step_s,)), batch=batch) for batch, step_s in ((2, 1.0), (4, 0.96), (8, 0.94))]
    assert [flag.partition(":")[0] for flag in doubt_sentences(summarize(results))] == ["ddp, batch 8"]


@pytest.mark.parametrize(("total_s", "flagged"), [(0.1, False), (0.1019, False), (0.103, True), (0.097, True)])
def test_phases_must_sum_to_their_total(total_s: float, flagged: bool) -> None:
    found = doubt_sentences(summarize([result(ok(totals_s=(total_s, total_s)))]))
    assert bool(found) == flagged
    assert all("phases sum to" in flag for flag in found)


def test_reserved_below_allocated_is_flagged_on_any_rank() -> None:
    ranks = (rank(0, memory=vram(30, 40)), rank(1, memory=vram(41, 40)))
    assert doubt_sentences(summarize([result(world(*ranks), machine=CUDA_MACHINE)])) == [
        "ddp, batch 2: rank 1 reserved 40.00 GiB, less than the 41.00 GiB it allocated."
    ]


@pytest.mark.parametrize(("slow_s", "flagged"), [(0.109, False), (0.112, True)])
def test_ranks_far_apart_are_flagged(slow_s: float, flagged: bool) -> None:
    found = doubt_sentences(summarize([result(ok((0.1,), (slow_s,)))]))
    assert found == (
        ["ddp, batch 2: rank 1's mean step (112 ms) takes 12.0 % longer than rank 0's (100 ms)."] * flagged
    )


def test_unlike_machines_are_flagged_and_another_commit_is_not() -> None:
    other = MACHINE.model_copy(update={"git_commit": "f" * 40})
    faster = MACHINE.model_copy(update={"cpu": "Other CPU"})
    assert doubt_sentences(summarize([result(), result(machine=other, batch=4)])) == []
    assert (
        "cpu: Example CPU against Other CPU"
        in doubt_sentences(summarize([result(), result(machine=faster, batch=4)]))[0]
    )


# Markup


@pytest.mark.parametrize("name", ["mixed.md", "mixed.csv", "mixed.json"])
def test_golden(name: str) -> None:
    file, summary = GOLDEN / name, summarize(mixed())
    text = (
        rendered(mixed())
        if name.endswith("md")
        else frame.text(records(summary), "csv" if name.endswith("csv") else "json")
    )
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), "run with UPDATE_GOLDEN=1 and look at the difference"


def test_the_deepspeed_note_stands_under_every_phase_table_with_deepspeed_and_only_there() -> None:
    note = "Compare the total between backends"
    text = rendered([result(), result(backend="zero2")])
    assert text.count(note) == text.count("## Phases") == 3
    assert note not in rendered([result(), result(backend="fsdp")])
    assert shown([result(), result(backend="zero2")], width=300).count(note) == 2


def test_a_run_ends_with_the_answer_on_a_terminal_and_elsewhere() -> None:
    text = markdown.document(Report(results=mixed()).brief)
    assert text.startswith("## What to run\n\n- For num_cams 1: train with ddp")
    headings = re.findall("^## (.+)", text, re.MULTILINE)
    assert headings == ["What to run", "Not compared", "Raw matrix", "Phases, mean ms", "Phases, % of total"]
    assert shown(mixed()).startswith("What to run\n- For num_cams 1: train with ddp")
    assert markdown.document(Report(results=[]).brief) == ""


def test_backward_step_is_never_printed() -> None:
    assert "backward_step" not in rendered(mixed()) + shown(mixed())


def test_memory_is_called_what_it_is() -> None:
    on_cpu = rendered([result()])
    assert "peak RSS GiB" in on_cpu
    assert "reserved GiB" not in on_cpu
    on_gpu = rendered([result(world(rank(memory=vram(30, 40))), machine=CUDA_MACHINE)])
    assert re.search(r"peak allocated GiB \| peak reserved GiB", on_gpu)
    assert "peak RSS GiB" not in on_gpu
    assert "2 x Example GPU, 80.00 GiB each" in on_gpu


HOSTILE = "a|b\n## c `d` <script>e</script> **f** [g](http://h) \x1b[31m _i_ ~~j~~ \\| &lt;"


def test_hostile_text_stays_in_its_cell() -> None:
    text = rendered([result(Failed(rank=0, phase="start", reason=HOSTILE)), result(batch=4)])
    rows = [line for line in text.splitlines() if "failed" in line]
    assert len(rows) == 1
    assert "\x1b" not in text
    assert "<script" not in text
    headers = next(line for line in text.splitlines() if line.startswith("| backend") and "outcome" in line)
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == headers.count("|")


@given(st.text())
def test_escaped_text_cannot_end_a_cell_or_a_line(text: str) -> None:
    escaped = markdown.escape(text)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(\\\\)*\|", escaped)
    assert "<" not in escaped


def test_names_of_fields_are_left_readable() -> None:
    assert (
        markdown.escape("zero_grad_sched = 0.95 * (n - 1), sorted[0]") == "zero_grad_sched = 0.95 * (n - 1), sorted[0]"
    )
    assert markdown.escape("__init__") == r"\_\_init\_\_"


def test_long_reasons_are_cut() -> None:
    text = rendered([result(Failed(rank=0, phase="start", reason="x" * 5000))])
    assert max(len(line) for line in text.splitlines()) < 500


def test_of_many_rows_the_details_are_those_of_each_cells_peak() -> None:
    few = [result(batch=batch, axes={"n": n}) for n in range(MAX_DETAILED // 2) for batch in (1, 2)]
    many = [*few, result(batch=4, axes={"n": 0})]
    for shown in (steps, ranks, partial(phases, statistic="mean")):
        assert len(shown(summarize(few)).rows) == len(few) == MAX_DETAILED
        assert not any("measured rows" in note for note in shown(summarize(few)).notes)
        found = shown(summarize(many))
        assert [row[1:3] for row in found.rows] == [(str(n), "4" if n == 0 else "2") for n in range(MAX_DETAILED // 2)]
        assert f"Only the fastest rows of all 150 cells, out of {len(many)} measured rows" in found.notes[-1]
    assert len(matrix(summarize(many)).rows) == len(many)
    cells = [result(batch=batch, axes={"n": n}) for n in range(MAX_DETAILED + 1) for batch in (1, 2)]
    assert len(steps(summarize(cells)).rows) == MAX_DETAILED
    assert f"of the first {MAX_DETAILED} of {MAX_DETAILED + 1} cells" in steps(summarize(cells)).notes[-1]


def test_a_long_reason_of_a_retry_is_cut() -> None:
    again = result().model_copy(update={"retried": "x" * 5000})
    (doubt,) = doubt_sentences(summarize([again]))
    assert doubt.startswith("ddp, batch 2: second try; the first failed: xxx")
    assert len(doubt) < 300


def test_columns_line_up_in_the_source() -> None:
    lines = rendered([result(batch=batch, backend=name) for name in ("ddp", "zero2") for batch in (1, 16)])
    for block in re.findall(r"(?:^\|.*\n)+", lines, re.MULTILINE):
        bars = [[match.start() for match in re.finditer(r"\|", line)][:-1] for line in block.splitlines()]
        assert all(one == bars[0] for one in bars)


def test_no_results() -> None:
    assert "No results." in rendered([])
    assert terminal.render(Report(results=[]).brief) == []


def test_four_axes_stay_readable_on_a_terminal_of_100_columns() -> None:
    switches = {"num_cams": 4, "attention": "eager", "grad_ckpt": False}
    outcome = world(rank(memory=vram(30, 40)))
    results = [
        result(outcome, backend="fsdp_grad_op", axes=switches, batch=16, machine=CUDA_MACHINE),
        result(outcome, axes={"num_cams": 1, "attention": "sdpa", "grad_ckpt": True}, machine=CUDA_MACHINE),
        result(Oom(rank=0, phase="forward", reason="word " * 60), batch=32, axes=switches, machine=CUDA_MACHINE),
    ]
    text = shown(results)
    assert max(len(line) for line in text.splitlines()) <= 100
    # Whole words: no name or number is folded into two lines.
    for word in ("fsdp_grad_op", "attention", "dataload", "samples/s", "allocated", "reserved", "50.0 %", "160"):
        assert word in text


def test_a_terminal_shows_the_answer_first() -> None:
    results = [result(), result(ok(backend="zero2"), backend="zero2"), result(backend="fsdp", num_processes=4)]
    text = shown(results)
    titles = ["What to run", "Which backend is faster", "Not compared", "Raw matrix", "Phases, mean ms"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert "\n- For num_processes 2: train with ddp, batch 2: 40 samples/s" in text
    assert "even, 1.00×" in text
    assert "they differ in num_processes." in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 100
    assert re.search(r"\x1b\[1mWhat to run\x1b\[0m\n- ", colored := shown(results, color="standard"))
    assert re.search(r"\x1b\[2m- fsdp, num_processes 4 is not compared", colored)


def test_a_terminal_shows_what_was_asked_for() -> None:
    attention = [result(ok((s,) * 3, (s,) * 3), axes={"attention": a}) for a, s in (("sdpa", 0.1), ("eager", 0.2))]
    assert "is faster" not in shown(attention)
    against = shown(attention, Choices(axis="attention", reference="eager"))
    assert re.search(r"best against best sdpa 2\.00× \(2\.00 to +eager +2 ", against)
    unlike = [result(), result(backend="zero2", num_processes=4)]
    assert "UNLIKE" not in shown(unlike)
    assert "UNLIKE in num_processes" in " ".join(shown(unlike, Choices(allowed=frozenset({"num_processes"}))).split())


def test_a_terminal_says_why_each_search_ended() -> None:
    results = [result(axes={"num_cams": n}) for n in (1, 4)]
    ended = [
        Stopped(reason="batch 3 neither fitted nor ran out of memory: \x1b[31mno [bold]beat[/]"),
        Verdict(
            max_batch_per_rank=None, certificate="nothing_fits", fits=None, fails=1, best=None, safe=None, points=0,
            thrashing=(), why="batch 1 does not fit",
        ),
    ]  # fmt: skip
    probes = [
        Probe(cell=one.attempt.cell, axes=one.axes, goal=Goal(), found=found)
        for one, found in zip(results, ended, strict=True)
    ]
    lines = [
        line
        for each in terminal.render(Report(results=results, probes=probes).brief)
        if (line := str(each)).startswith("ddp, num_cams")
    ]
    assert lines == [
        "ddp, num_cams 1: batch 3 neither fitted nor ran out of memory: \\x1b[31mno [bold]beat[/]",
        "ddp, num_cams 4: batch 1 does not fit",
    ]
    (probe,) = terminal.mark_up(searches(probes[1:]))[2:]
    assert str(probe) == "ddp: batch 1 does not fit"


def test_a_terminal_is_sent_no_markup_of_a_setting() -> None:
    text = shown([result(axes={"attention": name}) for name in ("[bold]a[/]", "b\x1b[31m")], color="standard")
    assert "[bold]a[/]" in text
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(
    ("results", "choices", "sentence"),
    [
        ([result()], Choices(), None),
        ([result()], Choices(reference="ddp"), "backend is ddp in all results: nothing to compare."),
        (
            [result(axes={"attention": "sdpa"}), result(backend="fsdp", axes={"attention": "sdpa"})],
            Choices(axis="attention"),
            "attention is sdpa in all results: nothing to compare.",
        ),
        (
            [
                result(axes={"attention": "sdpa"}),
                result(Oom(rank=0, phase="bwd", reason="x"), axes={"attention": "eager"}),
            ],
            Choices(axis="attention"),
            "attention is sdpa in all results that were measured: nothing to compare.",
        ),
    ],
)
def test_nothing_to_compare_is_said_where_it_was_asked_for(
    results: list[Result], choices: Choices, sentence: str | None
) -> None:
    text = markdown.render(sections.report(results, choices=choices))
    if sentence is None:
        assert "is faster" not in text
    else:
        assert f"## Which {choices.axis} is faster\n\n{sentence}\n" in text
        assert sentence in " ".join(shown(results, choices).split())


def test_a_report_needs_no_torch() -> None:
    code = (
        "import sys, bench.cli.progress, bench.report.render.markdown, bench.report.render.terminal;"
        "sys.exit(str({'torch', 'pandas', 'accelerate'} & sys.modules.keys() or '') or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
