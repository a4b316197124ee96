"""Reports: numbers recomputed by hand, and what the markup must keep, escape and point out."""

import re
from functools import partial

import pytest
from examples import (
    MACHINE,
    cell,
    doubt_sentences,
    launched,
    mixed,
    ok,
    on_terminal,
    rank,
    rendered,
    result,
    rss,
    vram,
    world,
)
from hypothesis import given
from hypothesis import strategies as st

from bench.records.outcome import Failed, Ok, Oom, Reported, Result
from bench.records.phases import PHASE_NAMES
from bench.records.script import Script
from bench.records.sources import LastCommand
from bench.report.advice import advise
from bench.report.compare import compare_runs
from bench.report.controlled import RUN
from bench.report.naming import row_name
from bench.report.rows import Measured
from bench.report.speedup import compare_axis
from bench.report.summary import newest_sources, row_of, summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.compare import changed_sources, warning
from bench.report.tables.header import header
from bench.report.tables.raw_matrix import MAX_DETAILED, matrix
from bench.report.tables.show import show
from bench.report.tables.speedup import faster
from bench.report.tables.steps import phases, ranks, steps


def measured(outcome: Ok, batch: int = 2) -> Measured:
    found = row_of(result(outcome, batch=batch)).measured
    assert found is not None
    return found


# Numbers


def test_throughput_is_gated_by_the_slowest_rank() -> None:
    found = measured(ok((0.1, 0.1, 0.1), (0.1, 0.2, 0.3)), batch=4)
    assert found.slowest.raw.rank == 1
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
    assert found.figures["peak_allocated_bytes_rank_max"] == 32 * 2**30
    assert found.figures["peak_reserved_bytes_rank_max"] == 60 * 2**30
    assert found.figures["capacity_share_rank_max"] == pytest.approx(0.75)


def test_memory_is_unknown_when_one_ranks_is() -> None:
    unknown = rss(1).model_copy(update={"peak_rss_bytes": None, "peak_allocated_bytes": None})
    found = measured(world(rank(0, memory=rss(1)), rank(1, memory=unknown)))
    assert found.figures["peak_rss_bytes_rank_max"] is None
    assert found.figures["capacity_share_rank_max"] is None


def test_ranks_of_several_nodes_name_their_nodes() -> None:
    on_nodes = [one.model_copy(update={"node": f"n{number}"}) for number, one in enumerate((rank(0), rank(1)), 1)]
    assert "| n1, n2 |" in rendered([result(world(*on_nodes))])
    assert "| node |" not in rendered([result(world(rank(0), rank(1)))])


def test_phases_are_those_of_the_slowest_rank_of_the_phase_window() -> None:
    slow = (0.01, 0.02, 0.06, 0.01, 0.01, 0.005, 0.005)
    found = measured(world(rank(0, (0.2, 0.2), totals_s=(0.1, 0.1)), rank(1, (0.1, 0.1), phases_s=slow)))
    assert found.slowest.raw.rank == 0
    assert found.phases is not None
    assert found.phases.rank == 1
    assert found.phases.total.mean_s == pytest.approx(0.12)
    assert found.phases.share("bwd") == pytest.approx(0.5)
    assert sum(found.phases.share(name) for name in PHASE_NAMES) == pytest.approx(1)
    assert found.instrumentation_share == pytest.approx(0.12 / 0.2 - 1)


def test_without_a_phase_window_there_is_no_phase_table() -> None:
    bare = rank(totals_s=())
    results = [result(world(bare))]
    assert measured(world(bare)).phases is None
    assert "## Phases" not in rendered(results)
    assert doubt_sentences(summarize(results)) == []


def test_the_losses_are_those_of_all_steps() -> None:
    found = measured(ok(backend="fsdp", losses=(2.0, 1.0, 0.25)))
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


def test_a_cell_of_one_node_says_so_beside_cells_of_several() -> None:
    one, two = summarize([result(), result(num_nodes=2)]).rows
    assert [row.settings["num_nodes"] for row in (one, two)] == [1, 2]
    assert "num_nodes" not in summarize([result()]).rows[0].settings


def test_true_and_one_are_two_values() -> None:
    assert summarize([result(axes={"x": True}), result(axes={"x": 1})]).columns == ("backend", "x")


def test_an_option_that_is_no_axis_still_tells_cells_apart() -> None:
    hidden = [result(options={"preset": "tiny", "hidden": n, "x": 3}) for n in (1, 2)]
    results = [*hidden, result(backend="fsdp")]
    summary = summarize(results)
    assert summary.columns == ("backend", "hidden")  # x would tell nothing more
    assert [row_name(summary, row) for row in summary.rows] == [
        "ddp, hidden 1, batch 2",
        "ddp, hidden 2, batch 2",
        "fsdp, hidden n/a, batch 2",
    ]
    for other in (result(), results[-1]):  # a task needs a name, where backends tell the cells apart
        assert summarize([results[0], other]).columns == ("backend", "hidden")


def test_settings_that_imported_figures_do_not_state_are_no_columns_beside_measured_ones() -> None:
    measured = [result(axes={"num_cams": 4}), result(backend="fsdp", axes={"num_cams": 4})]
    figures = Reported(source="a paper", samples_per_s_global=8.0)
    stated = result(figures, workload="w", options={}, num_processes=8, mixed_precision="no")
    imported = [stated.model_copy(update={"stated": ()})]
    summary = summarize([*measured, *imported])
    assert summary.columns == ("backend", "workload", "num_processes")
    assert not {"mixed_precision", "preset", "num_cams"} & summary.shared.keys()
    facts = dict(header(summary).facts)
    assert "mixed_precision" not in facts["Same for all"]
    assert "mixed_precision bf16" in facts["The same where known"]
    assert [task.task for task in advise(summary)] == [
        "workload pi07, num_processes 2",
        "workload w, num_processes 8, imported",
    ]


@pytest.mark.parametrize("name", ["steps", "seed", "cell", "num_processes"])
def test_an_option_with_a_name_of_bench_is_a_column_and_controlled(name: str) -> None:
    """A function of a user has its own words: ``cell: lstm``."""
    ddp, fsdp = (result(ok(backend=backend), backend=backend, options={name: 7 + n}, axes={name: 7 + n})
                 for n, backend in enumerate(("ddp", "fsdp")))  # fmt: skip
    summary = summarize([ddp, fsdp])
    if name != "num_processes":
        assert summary.columns == ("backend", name)
        assert [row_name(summary, row) for row in summary.rows] == [
            f"ddp, {name} 7, batch 2",
            f"fsdp, {name} 8, batch 2",
        ]
    compared = compare_axis(summary)
    assert (compared.speed_ups, len(compared.refused)) == ((), 1), "they are unlike"


def test_what_follows_from_an_axis_is_no_column() -> None:
    """An option that a preset, or an axis of the matrix, decides."""
    results = [result(axes={"preset": name}, options={"preset": name, "width": width}) for name, width in
               (("tiny", 8), ("small", 16))]  # fmt: skip
    assert summarize(results).columns == ("backend", "preset")


def test_cells_that_nothing_named_tells_apart_show_their_id() -> None:
    results = [result(accelerate={"mine": n}) for n in (1, 2)]
    summary = summarize(results)
    assert summary.columns == ("backend", "cell id")
    assert row_name(summary, summary.rows[1]) == f"ddp, cell id {cell(accelerate={'mine': 2}).id}, batch 2"


def test_the_peak_of_each_cell_is_bold_and_nothing_else() -> None:
    results = [
        result(ok((0.2, 0.2)), batch=8),
        result(ok((0.3, 0.3)), batch=10),
        result(ok((0.5, 0.5)), batch=12),
        result(ok((0.1, 0.1)), batch=1, backend="zero2"),
    ]
    rows = [line for line in rendered(results).splitlines() if re.match(r"\| (ddp|zero2) .*\bok\b", line)]
    assert [re.findall(r"\*\*(.+?)\*\*", row) for row in rows] == [["40.0"], [], [], ["10.0"]]


def test_a_thrashing_largest_batch_is_not_the_peak() -> None:
    cells = summarize([result(ok((9.186,)), batch=8), result(ok((19.435,)), batch=12)]).cells
    assert cells[0].best is not None
    assert cells[0].best.batch_per_rank == 8


def test_an_attempt_that_was_not_measured_keeps_its_row_and_its_reason() -> None:
    text, screen = rendered(mixed()), " ".join(on_terminal(mixed()).split())
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


def test_a_fault_is_not_said_twice() -> None:
    killed = result(Failed(fault="killed", rank=1, phase=None, reason="killed by SIGABRT in collate (train.py:8)"))
    lost = result(Failed(fault="ended", rank=1, phase=None, reason="rank 1 left neither a result nor an error"))
    assert summarize([killed]).rows[0].reason == "killed by SIGABRT in collate (train.py:8)"
    assert summarize([lost]).rows[0].reason == "ended: rank 1 left neither a result nor an error"


def test_of_many_rows_the_details_are_those_of_each_cells_peak() -> None:
    results = [result(batch=batch, axes={"n": n}) for n in range(MAX_DETAILED // 2) for batch in (1, 2)]
    few, many = summarize(results), summarize([*results, result(batch=4, axes={"n": 0})])
    for shown in (steps, ranks, partial(phases, statistic="mean")):
        assert len(shown(few).rows) == len(results) == MAX_DETAILED
        assert not any("measured rows" in note for note in shown(few).notes)
        found = shown(many)
        assert [row[1:3] for row in found.rows] == [(str(n), "4" if n == 0 else "2") for n in range(MAX_DETAILED // 2)]
        assert f"Only the fastest rows of all 150 cells, out of {len(results) + 1} measured rows" in found.notes[-1]
    assert len(matrix(many).rows) == len(results) + 1
    cells = summarize([result(batch=batch, axes={"n": n}) for n in range(MAX_DETAILED + 1) for batch in (1, 2)])
    assert len(steps(cells).rows) == MAX_DETAILED
    assert f"of the first {MAX_DETAILED} of {MAX_DETAILED + 1} cells" in steps(cells).notes[-1]


# Results of other sources than the newest


OLD, NEW = {"model/policy.py": "0", "model/data.py": "0"}, {"model/policy.py": "1", "model/data.py": "0"}


def made(by: dict[str, str] | None, hour: int, backend: str = "ddp", workload: str = "pi07", run: str = "") -> Result:
    one = result(ok(backend=backend), backend=backend, workload=workload)
    named = {RUN: run, **one.axes} if run else one.axes
    return one.model_copy(update={"sources": by, "started_at": f"2026-01-01T{hour:02}:00:00+00:00", "axes": named})


def stale(*results: Result) -> list[str]:
    return [str(row.settings["backend"]) for row in summarize(results).rows if row.stale]


def test_a_row_is_stale_when_the_newest_of_its_workload_has_other_sources() -> None:
    assert stale(made(OLD, 1), made(NEW, 2, "fsdp")) == ["ddp"]
    assert stale(made(OLD, 2), made(NEW, 1, "fsdp")) == ["fsdp"]
    assert stale(made(OLD, 1), made(OLD, 2, "fsdp")) == []
    assert stale(made(OLD, 1), made(NEW, 2, "fsdp", workload="mine:Mine")) == []
    assert stale(made(OLD, 1, run="a"), made(NEW, 2, "fsdp", run="b")) == []


def test_a_later_command_that_kept_everything_makes_it_stale() -> None:
    def stale_after(hour: int, workload: str = "pi07", *, run: str = "") -> list[str]:
        last = LastCommand(at=f"2026-01-01T{hour:02}:00:00+00:00", workload=workload, sources=NEW)
        results = [made(OLD, 2, run=run), made(OLD, 2, "fsdp", run=run)]
        rows = summarize(results, newest=newest_sources(results, {"a": last})).rows
        return [str(row.settings["backend"]) for row in rows if row.stale]

    assert stale_after(3) == stale_after(3, run="a") == ["ddp", "fsdp"]
    assert stale_after(1) == stale_after(3, "mine:Mine") == stale_after(3, run="b") == []


def test_scripts_with_different_commands_do_not_make_each_other_stale() -> None:
    def scripts(*folders: str) -> list[Result]:
        return [
            result(ok(), workload="train.py", script=Script(command=("python", f"{folder}/train.py"))).model_copy(
                update={"sources": {f"{number}.py": "0"}, "started_at": f"2026-01-01T0{number}:00:00+00:00"}
            )
            for number, folder in enumerate(folders)
        ]

    assert stale(*scripts("a", "b")) == []
    assert stale(*scripts("a", "a")) == ["ddp"]


def test_a_row_that_does_not_know_its_sources_is_not_stale() -> None:
    assert stale(made(None, 1), made(NEW, 2, "fsdp")) == []
    assert stale(made(OLD, 1), made(None, 2, "fsdp")) == []


def test_a_stale_row_is_marked_in_its_tables_and_doubted() -> None:
    results = [made(OLD, 1), made(NEW, 2, "fsdp")]
    [doubt] = doubt_sentences(summarize(results))
    assert doubt == ("ddp, batch 2 (stale): made by other sources than the newest of its workload: model/policy.py.")
    tables = [part for part in rendered(results).split("\n\n") if part.startswith("|") and "batch per rank" in part]
    rows = [line for table in tables for line in table.splitlines()[2:]]
    assert len(rows) > 4
    assert all(("2 (stale)" in line) == ("| ddp " in line) for line in rows), rows
    assert "(stale)" not in rendered([made(OLD, 1), made(OLD, 2, "fsdp")])


def test_a_stale_row_is_not_recommended_where_another_one_is_measured() -> None:
    fast, slow = ([0.1] * 3, [0.1] * 3), ([0.2] * 3, [0.2] * 3)
    old = made(OLD, 1, "fsdp").model_copy(update={"outcome": ok(*fast, backend="fsdp")})
    new = made(NEW, 2).model_copy(update={"outcome": ok(*slow)})
    first, *_, last = advice_sentences(summarize([old, new]), advise(summarize([old, new])))
    assert first.startswith("train with ddp, batch 2: ")
    assert "no other setting to recommend was measured" in first
    assert last == "fsdp: its results are stale: they are from older code; `bench run` measures them again."
    only_old = advice_sentences(summarize([old]), advise(summarize([old])))
    assert only_old[0].startswith("train with fsdp, batch 2: ")


def test_launches_before_and_after_a_change_of_the_code_do_not_show_how_much_launches_vary() -> None:
    steps = (0.2, 0.1, 0.1001, 0.0999)
    each = [launched(result(ok([step_s] * 20, [step_s] * 20)), launch) for launch, step_s in enumerate(steps, 1)]
    each = [one.model_copy(update={"sources": NEW if launch else OLD}) for launch, one in enumerate(each)]
    (variation,) = summarize(each).variations
    assert variation.sd < 0.01


def test_launches_of_mixed_sources_decide_nothing() -> None:
    def launches(by: dict[str, str], backend: str, step_s: float) -> list[Result]:
        times_s = [step_s * (1 + 0.01 * (index % 3)) for index in range(20)]
        one = result(ok(times_s, times_s, backend=backend), backend=backend)
        each = [launched(one, launch) for launch in range(1, 5)]
        return [
            each_one.model_copy(update={"sources": by, "started_at": f"2026-01-01T0{launch}:00:00+00:00"})
            for launch, each_one in enumerate(each, 1)
        ]

    def word(results: list[Result]) -> str:
        (ratio,) = {pair.ratio for pair in compare_axis(summarize(results)).speed_ups if not pair.matched}
        return ratio.word

    slow, fast = launches(OLD, "ddp", 0.3), launches(OLD, "fsdp", 0.1)
    assert word(slow + fast) == "faster"
    mixed = [*fast[:2], *launches(NEW, "fsdp", 0.1)[2:]]
    assert word(slow + mixed) == "undecided"
    assert "launches of different sources (stale)" in rendered(slow + mixed)
    assert stale(*slow, *mixed) == ["ddp", "fsdp"]
    assert word(slow + launches(NEW, "fsdp", 0.1)) == "undecided"
    failed = {
        "outcome": Failed(rank=None, phase=None, reason="no"),
        "sources": NEW,
        "started_at": "2026-01-02T00:00:00+00:00",
    }
    assert word([*slow, *fast[:3], fast[3].model_copy(update=failed)]) == "undecided"


def test_show_knows_what_the_run_holds_besides_the_cell() -> None:
    one, newest = made(OLD, 1), {("pi07", (), ""): NEW}
    attempts = next(part for part in show([one], {}, newest=newest) if part.title == "Attempts")
    assert "2 (stale)" in str(attempts)
    assert "stale" not in str(next(part for part in show([one], {}) if part.title == "Attempts"))


def test_compare_names_the_sources_that_differ_and_marks_an_environment_that_does() -> None:
    two = compare_runs([made(OLD, 1)], [made(NEW, 2)])
    assert changed_sources(two) == "Sources that differ between base and head: model/policy.py."
    assert warning(two) is None
    assert changed_sources(compare_runs([made(None, 1)], [made(NEW, 2)])) is None
    ring = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Ring"}})
    tree = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Tree"}})
    unlike = warning(compare_runs([result(machine=ring)], [result(machine=tree)]))
    assert unlike is not None
    assert unlike.endswith("NCCL_ALGO: Ring against Tree.")


def test_an_environment_that_differs_within_a_report_is_stated() -> None:
    ring = MACHINE.model_copy(update={"environment": {"NCCL_ALGO": "Ring"}})
    results = [result(machine=ring), result(ok(backend="fsdp"), backend="fsdp", machine=MACHINE)]
    assert doubt_sentences(summarize(results)) == []
    results[1] = results[1].model_copy(update={"machine": MACHINE.model_copy(update={"environment": {}})})
    assert doubt_sentences(summarize(results)) == [
        "The results differ in their environment: NCCL_ALGO: Ring against not set."
    ]
    assert "NCCL_ALGO Ring" in rendered(results)
