"""Fair comparison, advice, and the rows for other programs: from built results, and from the published table."""

import sys
from pathlib import Path
from typing import Any

import pytest
from examples import CUDA_MACHINE, MACHINE, in_few_steps, launched, ok, result, stored
from rich.console import Console
from typer.testing import CliRunner

from bench.cli.app import app
from bench.records.cell import Train
from bench.records.outcome import Reported, Result
from bench.report.advice import advise
from bench.report.speedup import MAX_REFUSED, compare_axis
from bench.report.summary import summarize
from bench.report.tables.advice import advice_sentences
from bench.report.tables.speedup import faster, refusals

CAPACITY_BYTES = 85_900_000_000
SDPA, EAGER = {"attention": "sdpa", "grad_ckpt": True}, {"attention": "eager", "grad_ckpt": False}


def published(backend: str, cams: int, switches: dict[str, Any], batch: int, *figures: float) -> Result:
    """A row as published: GB (1e9 bytes) allocated and reserved, and ms of a step."""
    allocated, reserved, step_ms = figures
    axes = {"num_cams": cams, **switches}
    outcome = Reported(
        source="published 8xA100 matrix",
        step_time_s_per_rank=(step_ms / 1e3,),
        figures={
            "peak_allocated_bytes_rank_max": round(allocated * 1e9),
            "peak_reserved_bytes_rank_max": round(reserved * 1e9),
            "capacity_bytes_rank_min": CAPACITY_BYTES,
        },
    )
    return result(outcome, backend=backend, batch=batch, axes=axes, machine=CUDA_MACHINE, num_processes=8)


FSDP = published("fsdp", 1, SDPA, 8, 43.86, 70.14, 3917)


def test_unlike_settings_are_refused_by_name() -> None:
    unlike = [FSDP, published("zero2", 1, EAGER, 2, 50.0, 60.0, 1000)]
    summary = summarize(unlike)
    found = compare_axis(summary)
    assert found.speed_ups == ()
    assert refusals(summary, found) == [
        "fsdp, num_cams 1, attention sdpa, grad_ckpt on is not compared with zero2, num_cams 1, attention eager,"
        " grad_ckpt off: they differ in attention, grad_ckpt."
    ] or refusals(summary, found) == [
        "fsdp, attention sdpa, grad_ckpt on is not compared with zero2, attention eager, grad_ckpt off: they differ in"
        " attention, grad_ckpt."
    ]


def test_an_override_is_loud_and_marks_each_figure() -> None:
    summary = summarize([FSDP, published("zero2", 1, EAGER, 8, 50.0, 60.0, 1000)])
    shown = faster(summary, compare_axis(summary, allowed=frozenset({"attention", "grad_ckpt"})))
    assert shown.rows
    assert all("UNLIKE in attention, grad_ckpt" in row[shown.headers.index("faster")] for row in shown.rows)
    assert "Only results that differ in nothing else" not in " ".join(shown.notes)
    assert shown.notes[1].startswith("Best against best: each side at the batch")
    assert shown.notes[0].startswith("UNLIKE: these figures compare results that also differ in attention, grad_ckpt")


def test_an_override_prefers_what_is_alike_and_shows_both_sides_of_what_is_not() -> None:
    cells = [("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4), ("zero2", 8)]
    summary = summarize([result(backend=backend, num_processes=ranks) for backend, ranks in cells])
    shown = faster(summary, compare_axis(summary, allowed=frozenset({"num_processes"})))
    columns = [shown.headers.index(name) for name in ("num_processes", "how", "backend A", "backend B")]
    best = [tuple(row[column] for column in columns) for row in shown.rows if "best against best" in row]
    assert best == [
        ("2", "best against best", "ddp", "fsdp"),
        ("4", "best against best", "ddp", "fsdp"),
        ("2 (A), 8 (B)", "best against best", "ddp", "zero2"),
    ]


def test_a_setting_that_one_side_alone_knows_is_refused_and_allowed_by_name() -> None:
    other = published("zero2", 1, {"grad_ckpt": True}, 8, 36.22, 36.45, 4416)
    for pair in ([FSDP, other], [other, FSDP]):
        summary = summarize(pair)
        found = compare_axis(summary)
        assert found.speed_ups == ()
        assert refusals(summary, found)[0].endswith("they differ in attention (known of one side alone).")
        assert {each.unlike for each in compare_axis(summary, allowed=frozenset({"attention"})).speed_ups} == {
            ("attention",)
        }


def test_what_does_not_say_its_value_of_the_axis_is_refused() -> None:
    summary = summarize([FSDP, published("fsdp", 1, {"grad_ckpt": True}, 8, 36.22, 36.45, 4416)])
    found = compare_axis(summary, "attention")
    assert found.speed_ups == ()
    assert refusals(summary, found)[0].endswith("they differ in attention (known of one side alone).")


def test_a_tie_of_imported_figures_has_no_winner() -> None:
    summary = summarize([published(name, 1, SDPA, 8, 40, 50, 4000) for name in ("fsdp", "zero2")])
    shown = faster(summary, compare_axis(summary))
    assert {row[shown.headers.index("faster")] for row in shown.rows} == {"too close to call, 1.00× (0.80 to 1.25)"}


def test_a_headline_that_rests_on_a_doubted_row_says_so() -> None:
    apart = result(ok((0.1,) * 3, (0.2,) * 3, backend="fsdp"), backend="fsdp")
    summary = summarize([result(), apart, result(backend="zero2")])
    shown = faster(summary, compare_axis(summary))
    marked = {row[shown.headers.index("backend B")]: row[shown.headers.index("faster")] for row in shown.rows}
    assert marked["fsdp"].endswith(", doubted")
    assert not marked["zero2"].endswith("doubted")
    assert shown.notes[-1] == 'Doubted: "Rows to doubt" lists one of its rows.'


def test_of_many_refusals_the_first_are_told_and_that_there_are_more() -> None:
    apart = [result(backend=name, axes={"num_cams": n}) for n, name in enumerate(("ddp", "fsdp") * (MAX_REFUSED + 1))]
    summary = summarize(apart)
    told = refusals(summary, compare_axis(summary))
    assert len(told) == MAX_REFUSED + 1
    assert told[0] == "ddp, num_cams 0 is not compared with fsdp, num_cams 1: they differ in num_cams."
    assert told[-1] == "More pairs are not compared; these are the first."
    few = summarize(apart[:4])
    assert all(line.endswith("they differ in num_cams.") for line in refusals(few, compare_axis(few)))


def test_a_cell_is_refused_with_the_nearest_of_the_others() -> None:
    far = result(backend="fsdp", axes={"num_cams": 4, "attention": "eager", "grad_ckpt": True})
    near = result(backend="fsdp", axes={"num_cams": 1, "attention": "eager", "grad_ckpt": True})
    one = result(axes={"num_cams": 1, "attention": "sdpa", "grad_ckpt": False})
    summary = summarize([one, far, near])
    first = compare_axis(summary).refused[0]
    assert (first.one.cell.id, first.other.cell.id) == (one.attempt.cell.id, near.attempt.cell.id)
    assert first.fields == ("attention", "grad_ckpt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--reference", "backend=fspd"),
            "--reference: no result has backend fspd\n  did you mean 'fsdp'?\n  allowed: ddp, fsdp",
        ),
        (("--reference", "backend"), "--reference: 'backend' names no value"),
        (("--reference", "backend=["), "--reference: 'backend=[' names no value"),
        (("--reference", "num_cams=true"), "--reference: no result has num_cams on\n  allowed: 1"),
        (("--reference", "bakend=ddp"), "--reference: 'bakend' is no field of these results"),
        (("--compare", "num_cams", "--reference", "backend=ddp"), "--reference: 'backend=ddp' is a value of backend"),
        (("--compare", "batch"), "--compare: 'batch' is no field of these results"),
        (("--allow-unlike", "num_cams, atention"), "--allow-unlike: 'atention' is no field of these results"),
    ],
)
def test_an_axis_or_a_value_that_no_result_has_is_one_message(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    run = stored(tmp_path / "run", [result(axes={"num_cams": 1}), result(backend="fsdp", axes={"num_cams": 1})])
    done = CliRunner().invoke(app, ["report", str(run), *arguments])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"bench: {message}")
    assert done.stdout == ""
    assert CliRunner().invoke(app, ["report", str(run), "--allow-unlike", "num_cams, seed"]).exit_code == 0


def test_the_options_apply_on_a_terminal_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, color_system=None, width=100)
    monkeypatch.setattr(sys.modules["bench.cli.report"], "console", lambda: terminal)
    unlike = [result(), result(backend="zero2", num_processes=4)]
    run = stored(tmp_path / "run", [*unlike, result(num_processes=8)])

    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["report", str(run), *arguments])
        assert done.exit_code == 0
        return " ".join(done.stdout.split())

    assert "is not compared with zero2, num_processes 4: they differ in num_processes." in said("--full")
    assert "UNLIKE in num_processes" in said("--allow-unlike", "num_processes")
    assert "Which num_processes is faster" in said("--reference", "num_processes=8")
    assert "seed is 1000 in all results: nothing to compare." in said("--compare", "seed")
    claims = tmp_path / "claims.yaml"
    claims.write_text("- {say: fast, metric: samples_per_s_global, of: {num_processes: 2}, value: {at_least: 9}}")
    assert "CONFIRMED" in said("--claims", str(claims))


def test_two_runs_with_the_same_cells_are_pointed_out_and_one_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    results = [result(), result(batch=4)]
    one, other = (stored(tmp_path / name, results[: 2 - number]) for number, name in enumerate(("one", "other")))
    both = CliRunner().invoke(app, ["report", "--full", str(one), str(other)]).stdout
    assert "1 cell is in more than one of these runs, with the run as a column" in both
    assert "3 attempts in 2 cells," in both
    twice = CliRunner().invoke(app, ["report", "--full", str(one), f"{one}/../one"]).stdout
    assert twice == CliRunner().invoke(app, ["report", "--full", str(one)]).stdout
    assert "in several" not in twice


def test_a_cell_on_two_machines_is_two_that_are_not_compared() -> None:
    faster = MACHINE.model_copy(update={"cpu": "Faster CPU"})
    quick = tuple(step_s / 3 for step_s in STEADY)
    results = [result(ok(STEADY, STEADY, backend=name), backend=name) for name in ("ddp", "fsdp")]
    results += [result(ok(quick, quick), machine=faster)]
    summary = summarize(results)
    assert summary.columns == ("backend", "machine")
    assert {pair.ratio.estimate for pair in compare_axis(summary).speed_ups} == {1.0}
    assert "they differ in hardware" in refusals(summary, compare_axis(summary))[0]
    told = advice_sentences(summary, advise(summary))
    assert told[0].startswith("For machine Example CPU: train with ddp, batch 2: 40.0 samples/s")
    assert told[-2].startswith("For machine Faster CPU: train with ddp, batch 2: 120 samples/s")


def test_two_runs_of_one_cell_give_one_matched_batch() -> None:
    once = [result(), result(ok(backend="fsdp"), backend="fsdp")]
    assert len(compare_axis(summarize([*once, *once])).speed_ups) == 2


def test_a_few_steps_of_a_search_are_no_matched_batch() -> None:
    both = [result(ok(backend=name), backend=name, batch=batch) for name in ("ddp", "fsdp") for batch in (2, 4)]
    few = in_few_steps(both[0])
    matched = [pair.row.batch_per_rank for pair in compare_axis(summarize([few, *both[1:]])).speed_ups if pair.matched]
    assert matched == [4]


def test_any_axis_can_be_compared_against_any_reference() -> None:
    results = [result(ok((s,) * 3, (s,) * 3), axes={"attention": a}) for a, s in (("sdpa", 0.1), ("eager", 0.2))]
    summary = summarize(results)
    [best, matched] = compare_axis(summary, "attention", reference="eager").speed_ups
    assert best.reference.settings["attention"] == "eager"
    assert best.ratio.estimate == matched.ratio.estimate == pytest.approx(2)
    assert not compare_axis(summary).speed_ups
    shown = faster(summary, compare_axis(summary, "attention", reference="eager"))
    assert shown.rows[0][shown.headers.index("faster")].startswith("sdpa 2.00×")


@pytest.mark.parametrize(
    ("axis", "values", "name"), [("num_cams", (1, 4), "num_cams 1"), ("grad_ckpt", (True, False), "grad_ckpt on")]
)
def test_a_number_or_a_switch_is_named_with_its_axis(axis: str, values: tuple[int, int], name: str) -> None:
    results = [result(ok((s,) * 3, (s,) * 3), axes={axis: v}) for v, s in zip(values, (0.1, 0.2), strict=True)]
    summary = summarize(results)
    shown = faster(summary, compare_axis(summary, axis))
    assert shown.rows[0][shown.headers.index("faster")].startswith(f"{name} 2.00×")


def test_a_ratio_has_an_interval_and_noise_is_undecided() -> None:
    steady, noisy = (0.1, 0.1001, 0.0999) * 4, (0.05, 0.16, 0.09) * 4
    summary = summarize([result(ok(steady, steady)), result(ok(noisy, noisy, backend="fsdp"), backend="fsdp")])
    found = compare_axis(summary).speed_ups[0]
    assert found.ratio.interval is not None
    assert found.ratio.interval[0] < 1 < found.ratio.interval[1]
    assert faster(summary, compare_axis(summary)).rows[0][1].startswith("too close to call, 1.00×")


def test_a_winner_is_named_however_little_it_is_faster() -> None:
    results = [
        launched(result(ok((step_s + number * 1e-7,) * 3, backend=backend), backend=backend), number)
        for backend, step_s in (("ddp", 0.1), ("fsdp", 0.1003))
        for number in range(1, 6)
    ]
    summary = summarize(results)
    assert faster(summary, compare_axis(summary)).rows[0][1].startswith("ddp 1.00×")


def test_advice_leaves_headroom_names_alternatives_and_what_it_rests_on() -> None:
    rows = [
        published("fsdp", 1, SDPA, 12, 51.29, 78.07, 5831),
        published("fsdp", 4, SDPA, 4, 39.33, 61.30, 5169),
        published("fsdp", 4, SDPA, 8, 49.68, 77.90, 9186),
        published("fsdp", 1, EAGER, 2, 58.74, 65.67, 1162),
        published("zero2", 1, SDPA, 8, 36.22, 36.45, 4416),
        published("zero2", 1, SDPA, 16, 46.25, 46.74, 6357),
        published("zero2", 1, SDPA, 24, 56.31, 57.04, 8134),
    ]
    summary = summarize([FSDP, *rows])
    told = advice_sentences(summary, advise(summary))
    assert told[0] == (
        "For num_cams 1: train with zero2, attention sdpa, grad_ckpt on, batch 24: 23.6 samples/s,"
        " 1.44× that of fsdp, batch 8 (1.08 to 1.94; holds unless launches vary by more than 6.3 %)."
    )
    assert told[1] == (
        "Uses 66.4 % of memory. Based on imported figures: published 8xA100 matrix."
    )  # and fsdp is no alternative: slower, and holds more
    assert told[2].startswith("For num_cams 4: train with fsdp")
    assert "batch 4: 6.19 samples/s" in told[2]  # batch 8 holds 90.7 %
    assert told[4].startswith("or perhaps faster, but beyond the headroom: fsdp")


STEADY, NOISY = (0.1, 0.1001, 0.0999) * 4, (0.06, 0.16, 0.1) * 4


def test_what_was_allowed_is_no_reason_to_refuse() -> None:
    changed = {"num_processes": 1, "train": Train(compile="unit")}
    results = [result(), result(ok((0.1,) * 3, backend="zero2"), backend="zero2", **changed)]
    summary = summarize(results)
    (line,) = refusals(summary, compare_axis(summary, "backend", allowed=frozenset({"compile"})))
    assert line.endswith("they differ in num_processes.")


def test_an_empty_value_can_be_compared() -> None:
    summary = summarize([result(axes={"note": ""}), result(axes={"note": "a"})])
    assert faster(summary, compare_axis(summary, "note")).rows
