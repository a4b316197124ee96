"""Figures from elsewhere: what is read, what stays unknown, and what a bad file is told."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples import doubt_sentences, ok, rendered, result
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.cli.app import app
from bench.cli.import_ import save
from bench.errors import InputError
from bench.imported import read_all
from bench.records.machine import StatedHardware
from bench.records.outcome import Oom, Reported, Result
from bench.records.phases import PHASE_NAMES
from bench.report.controlled import controlled_of
from bench.report.render import frame
from bench.report.summary import summarize
from bench.report.tables.charts import charts
from bench.report.tables.export import records
from bench.report.tables.show import show
from bench.report.tables.table import Table
from bench.store.run_folder import Store

PUBLISHED = Path(__file__).parents[2] / "reports" / "published-8xA100"
AT = "2030-01-01T00:00:00+00:00"
HEAD = """# source: a wiki page
# workload: a policy
# num_processes: 8
"""
COLUMNS = "backend,num_cams,batch,step_time_ms,samples_per_s,peak_allocated_gb\n"
GOOD = HEAD + COLUMNS + "fsdp,1,8,3917,16.3,43.86\nzero2,1,8,4416,14.5,\n"


def imported(folder: Path, text: str | bytes, *options: str, name: str = "table.csv") -> tuple[Result, ...]:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_all([file], options, AT).results


def reported(result: Result) -> Reported:
    assert isinstance(result.outcome, Reported)
    return result.outcome


def published() -> tuple[Result, ...]:
    return read_all(sorted((PUBLISHED / "imported").glob("*.csv")), [], AT).results


# What is read


def test_units_are_those_of_the_names(tmp_path: Path) -> None:
    columns = "backend,batch,step_time_s,bwd_ms,peak_allocated_gib,peak_reserved_bytes,capacity_gb\n"
    found = reported(imported(tmp_path, HEAD + columns + "ddp,2,0.5,300,1.5,2000000000,85.9\n")[0])
    assert found.step_time_s_per_rank == (0.5,)
    assert found.phase_times_s == {"bwd": pytest.approx(0.3)}
    assert found.figures["peak_allocated_bytes_rank_max"] == 3 * 2**29
    assert found.figures["peak_reserved_bytes_rank_max"] == 2_000_000_000
    assert found.figures["capacity_bytes_rank_min"] == 85_900_000_000
    assert found.samples_per_s_global is None
    assert found.source == "a wiki page"


def test_the_smallest_figures_are_read(tmp_path: Path) -> None:
    columns = "backend,batch,step_time_s,peak_bytes,capacity_bytes\n"
    found = reported(imported(tmp_path, HEAD + columns + "ddp,1,1e-9,1e-9,1e18\nfsdp,1,1e-9,1e-9,1e-9\n")[0])
    assert found.figures["capacity_share_rank_max"] == 1e-18


def test_a_gb_is_1e9_bytes_and_a_row_comes_before_what_holds_for_all(tmp_path: Path) -> None:
    fsdp, zero2 = imported(tmp_path, GOOD, "accelerator=A100", "source=not this one")
    assert reported(fsdp).figures["peak_allocated_bytes_rank_max"] == 43_860_000_000
    assert "peak_allocated_bytes_rank_max" not in reported(zero2).figures
    assert reported(fsdp).source == "a wiki page"
    assert fsdp.machine.accelerators == ("A100",) * 8
    assert fsdp.attempt.cell.options == {"num_cams": 1}
    assert fsdp.axes == {"backend": "fsdp", "num_cams": 1}


def test_what_is_not_said_is_not_made_up(tmp_path: Path) -> None:
    result = imported(tmp_path, GOOD)[0]
    machine = result.machine
    assert machine.hardware == StatedHardware(device="cuda", devices=8, memory_bytes=None)
    assert (machine.cpu, machine.system, machine.python, machine.bench, machine.driver) == (None,) * 5
    assert machine.libraries == {}
    known = {"backend", "num_cams", "workload", "num_processes", "hardware", "driver", "versions", "allocator"}
    assert set(controlled_of(result)) == known
    text = rendered([result])
    assert "- **Same for all:** num_cams 1, workload a policy, num_processes 8\n" in text
    assert "- **Measuring:** n/a\n" in text
    assert "seed" not in text
    assert "None" not in text.replace("\nNone.\n", "")


def test_settings_that_are_said_are_shown(tmp_path: Path) -> None:
    options = ("warmup_steps=20", "steps=10", "mixed_precision=bf16", "workload.image_px=448", "fused=true")
    result = imported(tmp_path, GOOD, *options)[0]
    assert result.stated == ("mixed_precision", "fused", "warmup_steps", "steps")
    assert result.attempt.cell.measure.warmup_steps == 20
    assert result.attempt.cell.options["image_px"] == 448
    assert "- **Measuring:** warmup_steps 20, steps 10\n" in rendered([result])


def test_outcomes_other_than_a_measurement(tmp_path: Path) -> None:
    table = "backend,batch,outcome,step_time_ms,reason\nfsdp,4,oom,,\nfsdp,2,,10,\nfsdp,8,failed,,it crashed\n"
    oom, ok, failed = imported(tmp_path, HEAD + table)
    assert oom.outcome == Oom(rank=None, phase=None, reason="from elsewhere: a wiki page")
    assert ok.outcome.kind == "reported"
    assert failed.outcome.kind == "failed"
    assert "| failed" in rendered([oom, ok, failed])


def test_a_peak_of_unsaid_kind_only_gives_its_share(tmp_path: Path) -> None:
    table = "backend,batch,step_time_s,peak_gib,capacity_gib,capacity_share\nddp,2,1,60,80,\nddp,4,1,,80,79 %\n"
    first, second = (reported(result) for result in imported(tmp_path, HEAD + table))
    assert "peak_allocated_bytes_rank_max" not in first.figures
    assert first.figures["capacity_share_rank_max"] == pytest.approx(0.75)
    assert second.figures["capacity_share_rank_max"] == pytest.approx(0.79)


PROFILE = {
    "backend": "ddp",
    "batch": 12,
    "world_size": 2,
    "num_cams": 2,
    "grad_ckpt": False,
    "attention": "sdpa",
    "phase_means_s": {
        "dataload_wait": 0.00124, "forward": 0.37886, "bwd": 0.70632, "unscale_clip": 0.01955,
        "optim_step": 0.03922, "zero_grad_sched": 0.00179, "sync_gather": 0.00964, "total": 1.15663, "other": 1,
    },
    "global_step_time_s": 1.2,
    "per_rank_step_time_s": [1.15, 1.2],
    "peak_alloc_gb_worst": 40.5,
    "peak_reserved_gb_worst": 50,
    "host": "somewhere",
}  # fmt: skip


def profile(folder: Path, **changes: object) -> tuple[Result, ...]:
    content = {name: value for name, value in {**PROFILE, **changes}.items() if value is not ...}
    return imported(folder, json.dumps(content), "source=old runs", "workload=pi05", name="step.json")


def test_the_json_of_a_step_profiler(tmp_path: Path) -> None:
    (result,) = profile(tmp_path)
    found = reported(result)
    assert found.step_time_s_per_rank == (1.15, 1.2)
    assert found.figures["peak_allocated_bytes_rank_max"] == 40_500_000_000
    assert found.phase_times_s["total"] == 1.15663
    assert result.attempt.cell.num_processes == 2
    assert result.attempt.cell.options == {"num_cams": 2, "grad_ckpt": False, "attention": "sdpa"}
    row = summarize([result]).rows[0]
    assert row.measured is not None
    assert row.measured.phases is not None
    assert row.measured.phases.share("bwd") == pytest.approx(0.6107, abs=1e-4)
    assert "## Phases, mean ms" in rendered([result])
    assert result.notes == {"phase_means_s.other": 1, "host": "somewhere"}


def test_phases_that_were_not_given_are_unknown_and_the_others_are_shown(tmp_path: Path) -> None:
    first, second = imported(
        tmp_path, HEAD + "backend,batch,step_time_s,bwd_ms,total_ms\nfsdp,8,9,6633,\nzero2,8,6,3900,6066\n"
    )
    text = rendered([first, second])
    means = text.partition("## Phases, mean ms")[2].partition("##")[0]
    lines = [[cell.strip() for cell in line.split("|")] for line in means.splitlines() if line.startswith("|")]
    assert [line[3:-1] for line in lines[2:]] == [
        ["n/a", "n/a", "n/a", "6633", *["n/a"] * 4, "n/a"],
        ["n/a", "n/a", "n/a", "3900", *["n/a"] * 4, "6066"],
    ]
    shares = text.partition("## Phases, % of total")[2].partition("##")[0]
    assert "| zero2   |" in shares
    assert "64.3" in shares
    assert "| fsdp" not in shares  # without a total there is none
    assert "## Phases, median ms" not in text
    assert doubt_sentences(summarize([first, second])) == []
    whole = [chart.name for chart in charts(summarize([first, second]))]
    assert "phases" not in whole  # a bar of one phase would look like a short step


@pytest.mark.parametrize(
    ("columns", "values", "doubt"),
    [
        ("peak_allocated_gib,peak_reserved_gib", "30,20", "its peak reserved is 20.00 GiB, less than the 30.00 GiB"),
        ("peak_allocated_gib,peak_reserved_gib", "30,30", None),
        ("peak_allocated_gib", "30", None),
        ("{phases}", "10,20,40,10,10,5,5,103", "its phases sum to 2.9 % short of their total."),
        ("{phases}", "9,21,40,10,10,5,5,97", "its phases sum to 3.1 % beyond their total."),
        ("{phases}", "10,20,40,10,10,5,5,101", None),
        ("{phases}", "10,20,,10,10,5,5,101", None),
        (
            "{phases}",
            "30,0,40,10,10,5,5,100",
            "a rank waits for data during 30.0 % of its step: the loader is too slow.",
        ),
    ],
)
def test_imported_figures_are_doubted_by_the_same_rules(
    columns: str, values: str, doubt: str | None, tmp_path: Path
) -> None:
    columns = columns.format(phases=",".join(f"{name}_ms" for name in (*PHASE_NAMES, "total")))
    found = doubt_sentences(
        summarize(imported(tmp_path, HEAD + f"backend,batch,step_time_s,{columns}\nfsdp,8,1,{values}\n"))
    )
    assert len(found) == (doubt is not None)
    assert all(one.startswith(f"fsdp, batch 8: {doubt}") for one in found)


def test_ranks_of_a_profile_that_are_far_apart_are_flagged(tmp_path: Path) -> None:
    (doubt,) = doubt_sentences(summarize(profile(tmp_path, per_rank_step_time_s=[1.2, 1.0])))
    assert doubt == "ddp, batch 12: rank 0's mean step (1200 ms) takes 20.0 % longer than rank 1's (1000 ms)."


def test_a_cell_of_imported_figures_is_shown_without_defaults_that_nobody_stated(tmp_path: Path) -> None:
    results = imported(tmp_path, GOOD, "warmup_steps=20", "capacity_gb=80")[:1]
    shown = {part.title: part for part in show(results, {}) if isinstance(part, Table)}
    assert [name for name, _ in shown["Settings"].rows] == [
        "backend", "accelerate", "workload", "options.num_cams", "num_processes", "measure.warmup_steps",
    ]  # fmt: skip
    assert shown["Attempts"].rows[0][1] == "imported"
    assert shown["Imported figures"].rows == (("8", "40.85", "n/a", "n/a", "a wiki page"),)


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.5), ("cuda", None)])
def test_what_a_gpu_holds_is_not_known_from_what_is_allocated(tmp_path: Path, device: str, share: float | None) -> None:
    table = "backend,batch,step_time_s,peak_allocated_gb,peak_reserved_gb\nddp,8,1,40,\nddp,16,1,40,72\n"
    (cell,) = summarize(imported(tmp_path, HEAD + table, "capacity_gb=80", f"device={device}")).cells
    alone, both = (row.measured for row in cell.rows)
    assert alone is not None
    assert both is not None
    assert alone.figures["capacity_share_rank_max"] == share
    assert both.figures["capacity_share_rank_max"] == pytest.approx(0.9)
    assert alone.figures["capacity_bytes_rank_min"] == both.figures["capacity_bytes_rank_min"] == 80e9


def test_a_stated_share_of_what_a_gpu_holds_counts_what_is_used_beside_the_allocator(tmp_path: Path) -> None:
    table = "backend,batch,step_time_s,peak_reserved_gib,capacity_gib,capacity_share\nddp,8,1,6,8,83%\n"
    (found,) = (row.measured for row in summarize(imported(tmp_path, HEAD + table)).rows)
    assert found is not None
    assert found.figures["capacity_share_rank_max"] == pytest.approx(0.83)


def test_a_stated_share_of_what_a_gpu_holds_makes_no_capacity_of_what_is_allocated(tmp_path: Path) -> None:
    table = "backend,batch,step_time_s,peak_allocated_gb,capacity_share\nddp,8,1,40,90%\n"
    (found,) = (row.measured for row in summarize(imported(tmp_path, HEAD + table)).rows)
    assert found is not None
    assert found.figures["capacity_share_rank_max"] == pytest.approx(0.9)
    assert found.figures["capacity_bytes_rank_min"] is None


def test_processes_of_one_import_that_differ_were_measured_on_one_machine(tmp_path: Path) -> None:
    head = "# source: a paper\n# workload: a policy\n# accelerator: Some GPU\n"
    table = "backend,num_processes,batch,step_time_s\nddp,4,8,1\nddp,8,8,1.1\n"
    results = imported(tmp_path, head + table)
    assert [result.machine.hardware.devices for result in results] == [8, 8]
    assert doubt_sentences(summarize(results)) == []
    assert controlled_of(results[0])["hardware"] == controlled_of(results[1])["hardware"] == [None, *["Some GPU"] * 8]
    stated = imported(tmp_path, head + "backend,num_processes,batch,step_time_s,devices\nddp,4,8,1,4\nddp,8,8,1.1,\n")
    assert [result.machine.hardware.devices for result in stated] == [4, 8]


def test_a_profile_of_every_step_is_read_and_stored_and_what_no_profile_is_is_not(tmp_path: Path) -> None:
    (result,) = profile(tmp_path, trace=["x" * 1000] * 400)
    save([result], [tmp_path / "step.json"], Store(tmp_path / "run"))
    with (tmp_path / "table.csv").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(InputError, match=r"table.csv: is larger than 64.0 MiB, too large to be a table of figures"):
        read_all([tmp_path / "table.csv"], [], AT)


def test_a_list_of_profiles(tmp_path: Path) -> None:
    entries = [PROFILE, {**PROFILE, "batch": 6}]
    results = imported(tmp_path, json.dumps(entries), "source=x", "workload=y", name="all.JSON")
    assert [result.attempt.batch_per_rank for result in results] == [12, 6]


# A run


def test_a_run_of_imported_figures_is_a_run(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(GOOD)
    done = CliRunner().invoke(app, ["import", str(file), "accelerator=A100", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "imported 2 rows in 2 cells" in done.output
    store = Store(tmp_path / "run")
    assert [result.outcome.kind for result in store.results()] == ["reported"] * 2
    assert (tmp_path / "run" / "imported" / "table.csv").read_text() == GOOD
    assert not (tmp_path / "run" / "matrix.yaml").exists()
    assert "8 x A100" in (tmp_path / "run" / "report-full.md").read_text()
    shown = CliRunner().invoke(app, ["report", "--full", str(tmp_path / "run")])
    assert "Imported; means without samples" in shown.output


def test_notes_are_named_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(json.dumps({**PROFILE, "\x1b[31mred\u202e": 1, "long " * 500: 2}))
    done = CliRunner().invoke(app, ["import", str(file), "source=x", "workload=y", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("kept as notes: ")]
    assert line.isprintable()
    assert len(line) < 500


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    results = imported(tmp_path, GOOD)
    store = Store(tmp_path / "run")
    save(results, [tmp_path / "table.csv"], store)
    with pytest.raises(InputError, match="already holds a run"):
        save(results, [tmp_path / "table.csv"], store)
    with pytest.raises(InputError, match="same name"):
        save(results, [tmp_path / "table.csv", tmp_path / "x" / "table.csv"], Store(tmp_path / "other"))


def test_the_published_run_is_what_the_command_makes_of_its_sources() -> None:
    stored = {result.attempt.slug: result for result in Store(PUBLISHED).results()}
    made = {one.attempt.slug: one for one in published()}
    assert set(stored) == set(made)
    for slug, one in made.items():
        assert stored[slug].model_copy(update={"started_at": AT}) == one


def test_published_figures() -> None:
    summary = summarize(published())
    best = {
        (str(cell.cell.backend), cell.cell.options["num_cams"], cell.cell.options["attention"]): cell.best
        for cell in summary.cells
    }
    assert {key: row.batch_per_rank for key, row in best.items() if row is not None} == {
        ("fsdp", 1, "sdpa"): 12,
        ("fsdp", 4, "sdpa"): 8,
        ("fsdp", 1, "eager"): 2,
        ("fsdp", 4, "eager"): 1,
        ("zero2", 1, "sdpa"): 24,
        ("zero2", 4, "sdpa"): 20,
        ("zero2", 2, "sdpa"): 16,
        ("zero3", 2, "sdpa"): 16,
    }
    thrashing = [cell.thrashing for cell in summary.cells if cell.thrashing]
    assert thrashing == [frozenset({10, 12})]
    doubts = [doubt for doubt in doubt_sentences(summary) if "shorter" in doubt]
    assert len(doubts) == 1
    assert "zero2" in doubts[0]
    assert "batch 16: its step (5290 ms) is 6.2 % shorter than that of batch 8 (5640 ms)" in doubts[0]


# Bad input


@dataclass(frozen=True)
class Case:
    text: str | bytes
    expected: tuple[str, ...]
    options: tuple[str, ...] = ()
    file: str = "table.csv"


def row(line: str, columns: str = COLUMNS) -> str:
    return HEAD + columns + line + "\n"


CASES = [
    Case("", ("table.csv: is empty",)),
    Case(HEAD, ("table.csv: is empty",)),
    Case(HEAD + COLUMNS, ("has columns but no rows",)),
    Case(GOOD.encode("utf-16"), ("is not UTF-8",)),
    Case(row("ddp,1,2", "backend,bacth,step_time_s\n"), ("table.csv:5: batch: is required", "add --map batch=bacth")),
    Case(row("1,1", "batch,batch\n"), ("'batch' is given twice",)),
    Case(row("1,1", "batch,\n"), ("column 2 has no name",)),
    Case(row("fsdp,1,8,1,,,"), ("table.csv:5: has 7 values, but there are 6 columns",)),
    Case(row('"fsdp,1,8,1,,'), ("table.csv:5: is not CSV",)),
    Case(row(",1,8,1000,,"), ("table.csv:5: backend: is required", "# backend: ...")),
    Case(row("ddp,1", "backend,step_time_s\n"), ("batch: is required",)),
    Case(COLUMNS + "fsdp,1,8,1,,\n", ("workload: is required",), ("num_processes=8", "source=x")),
    Case(row("fsdp,1,8,fast,,"), ("table.csv:5: step_time_ms: 'fast'", "a number above 0")),
    Case(row("fsdp,1,8,,16,43ms"), ("peak_allocated_gb: '43ms'", "alone or with a unit")),
    Case(row("fsdp,1,8,nan,,"), ("step_time_ms: 'nan' cannot be used",)),
    Case(row("fsdp,1,8,-3,,"), ("step_time_ms: '-3' cannot be used",)),
    Case(row("fsdp,1,8,0,,"), ("step_time_ms: '0' cannot be used",)),
    Case(row("fsdp,1,8,1e999,,"), ("step_time_ms: '1e999' cannot be used",)),
    Case(row("fsdp,1,8,1e30,,"), ("step_time_ms: '1e30' cannot be used", "allowed: from 1e-06 to 1e+21")),
    Case(row("fsdp,1,8,1e-30 s,,"), ("step_time_ms: '1e-30 s' cannot be used", "allowed: from 1e-09 s to 1e+18 s")),
    Case(row("fsdp,1,8,,1e30,"), ("samples_per_s: 1e+30 cannot be used", "allowed: from 1e-09 to 1e+18")),
    Case(row("fsdp,1,0,1,,"), ("table.csv:5: batch: '0'", "at least 1")),
    Case(row("fsdp,1,1.5,1,,"), ("batch: '1.5'",)),
    Case(row("fsdp,four,8,1,,"), ("num_cams: 'four'", "a whole number")),
    Case(row("../x,1,8,1,,"), ("backend: '../x'", "becomes a folder's name")),
    Case(row("a,0,1,1", "backend,warmup_steps,batch,step_time_s\n"), ("warmup_steps: 0", "at least 1")),
    Case(row("a,OOM,1", "backend,outcome,batch\n"), ("outcome: 'OOM'", "oom, hang")),
    Case(row("a,oom,1,3", "backend,outcome,batch,step_time_s\n"), ("'oom' cannot have figures",)),
    Case(row("fsdp,1,8,,,"), ("no row has a figure", "oom")),
    Case(row("fsdp,1,64,3917,16.3,"), ("16.3 samples/s is impossible", "the number of samples of one rank")),
    Case(row("a,79,1,1", "backend,capacity_share,batch,step_time_s\n"), ("'79'", "0.79 or 79%")),
    Case(
        row("a,1,1,87,80", "backend,batch,step_time_s,peak_reserved_gib,capacity_gb\n"),
        ("table.csv:5: peak_reserved: 87.00 GiB is more than the capacity of 74.51 GiB", "_gb is 1e9 bytes"),
    ),
    *(
        Case(
            row(f"a,1,1,{peak},80,{share}", f"backend,batch,step_time_s,{name}_gb,capacity_gb,capacity_share\n"),
            (f"table.csv:5: capacity_share: {said} is impossible: {name} is ", f" of 74.51 GiB, {found}", "leave one"),
            options,
        )
        for name, peak, share, said, found, options in (
            ("peak_reserved", "79", "10%", "10.0 %", "98.8 %", ()),
            ("peak_reserved", "40", "0.9", "90.0 %", "50.0 %", ()),
            ("peak", "79", "10%", "10.0 %", "98.8 %", ()),
            ("peak_allocated", "79", "10%", "10.0 %", "98.8 %", ()),
            ("peak_allocated", "40", "0.9", "90.0 %", "50.0 %", ("device=cpu",)),
        )
    ),
    *(
        Case(row(f"a,2,{values}", f"backend,batch,{columns}\n"), (f"table.csv:5: {said}", "leave one of the two"))
        for columns, values, said in (
            ("step_time_ms,total_ms", "1000,9000", "total: phases of 9 s are impossible: the step takes 1 s"),
            (
                "step_time_ms,forward_ms,bwd_ms",
                "1000,4000,5000",
                "bwd: phases of 9 s are impossible: the step takes 1 s",
            ),
            (
                "samples_per_s,backward_step_s",
                "16,9",
                "backward_step: phases of 9 s are impossible: the step takes 1 s",
            ),
            (
                "step_time_ms,forward_ms,bwd_ms,total_ms",
                "1000,800,700,1000",
                "total: phases of 1.5 s are impossible: their total is 1 s",
            ),
        )
    ),
    Case('{"batch": 1, "x": {"a": 1, "a": 2}}', ("x.json: ", "'a' is given twice"), file="x.json"),
    Case(row("a,1,1,0", "backend,batch,step_time_s,total_ms\n"), ("total_ms: '0'", "above 0")),
    Case(row("a,1,1,1000", "backend,batch,step_time_s,step_time_ms\n"), ("give the same figure twice",)),
    Case(
        row("a,1,failed,1200,2048", "backend,batch,outcome,tokens_per_s,seq_len\n"), ("'failed' cannot have figures",)
    ),
    Case(row("fsdp,1,8,1,,\nfsdp,1,8,1,,"), ("table.csv:6", "says the same as", ":5")),
    Case(
        row("a,1,1,3", "backend,batch,step_time_s,workload.backend\n"),
        ("workload.backend has the name of a field of bench", "name the column backend"),
    ),
    Case("# source: x\n# source: y\n" + GOOD, ("table.csv:2", "'source' is given twice", "table.csv:1")),
    Case("# sorce: x\n" + GOOD, ("table.csv:1", "did you mean 'source'?")),
    Case(GOOD, ("sorce=x: unknown field 'sorce'", "did you mean"), ("sorce=x",)),
    Case(GOOD, ("unknown field 'gradient_accumulation_steps'", "write accumulate"), ("gradient_accumulation_steps=2",)),
    Case(GOOD, ("command line: 'source=' has no name or no value",), ("source=",)),
    Case('{"batch": 1,\n oops}', ("x.json:2: is not JSON",), file="x.json"),
    Case('{"batch": NaN}', ("x.json: is not JSON that can be used: NaN",), file="x.json"),
    Case("[" * 100_000, ("x.json: is not JSON",), file="x.json"),
    Case("5", ("x.json: holds 5", "an object"), file="x.json"),
    Case("[1]", ("x.json: holds [1]",), file="x.json"),
    Case("[]", ("x.json: holds []",), file="x.json"),
]


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("peak_allocated_gb,capacity_gb,capacity_share", "40,80,90%"),
        ("peak_reserved_gb,capacity_gb,capacity_share", "70,80,90%"),
        ("forward_ms,bwd_ms,optim_step_ms,backward_step_ms,total_ms", "300,500,200,700,1100"),
        ("total_ms", "1900"),
    ],
    ids=["more held than allocated", "held beside the allocator", "a sum and its parts", "waiting at each phase"],
)
def test_figures_that_may_be_are_not_refused(tmp_path: Path, columns: str, values: str) -> None:
    (result,) = imported(tmp_path, row(f"a,1,1,{values}", f"backend,batch,step_time_s,{columns}\n"))
    assert result.outcome.kind == "reported"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.expected[0][:60])
def test_bad_input_gets_one_message(case: Case, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        imported(tmp_path, case.text, *case.options, name=case.file)
    message = str(caught.value)
    assert [part for part in case.expected if part not in message] == [], message
    assert len(message.splitlines()) <= 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"batch": "many"}, ("step.json: batch: 'many'", "a whole number")),
        ({"batch": True}, ("batch: true",)),
        ({"phase_means_s": [1]}, ("phase_means_s: [1]", "seconds by phase")),
        ({"phase_means_s": {"bwd": "x"}}, ("bwd_s: 'x'", "at least 0")),
        ({"per_rank_step_time_s": [1.0]}, ("step_time_s_per_rank: [1.0]", "a list of 2 times")),
        ({"per_rank_step_time_s": 3}, ("step_time_s_per_rank: 3",)),
        (
            {"per_rank_step_time_s": [0.58, 0.6]},
            (
                "step.json: step_time_s_per_rank: 0.6 s for the slowest rank is impossible: the step takes 1.2 s",
                "leave one",
            ),
        ),
        ({"peak_alloc_gb_worst": "1 ms"}, ("peak_allocated_gb: '1 ms'",)),
        ({"backend": 3}, ("backend: 3",)),
        ({"backend": ...}, ("backend: is required",)),
        ({"num_cams": {"front": 1}}, ("num_cams: {", "a single value")),
        ({"attention": "\ud800"}, ("attention", "text in one line")),
        ({"num_processes": 8}, ("num_processes: 'num_processes' is given twice",)),
        ({"steps": 10**400}, ("steps: 1000", "below 2**63")),
    ],
)
def test_a_bad_profile_gets_one_message(changes: dict[str, object], expected: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        profile(tmp_path, **changes)
    assert [part for part in expected if part not in str(caught.value)] == [], str(caught.value)


def test_bad_input_ends_the_command_with_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["import", str(tmp_path / "none.csv"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "no such file" in done.output
    assert not (tmp_path / "run").exists()
    assert CliRunner().invoke(app, ["import", "batch=1"]).exit_code == 2


PIECES = [
    ",",
    "\n",
    '"',
    "#",
    "# batch: 3\n",
    "nan",
    "1e308",
    "-1",
    "oom",
    "\0",
    "\ud7ff",
    "|",
    "1e999",
    "</td>",
    "{",
    "é",
    "\r",
    ";",
    "0",
    "true",
    "%",
    " ",
]


TEXTS = {
    "table.csv": GOOD,
    "table.md": "| backend | batch | TPS/GPU | Memory (GiB) |\n|--|--|--:|--|\n| ddp | 8 | 5,120 | ~8.5 ± 1 |\n"
    "| fsdp | 8 | **640 samples/sec** | OOM |\n",
    "table.html": "<table><tr><th>backend<th>batch<th>step time (ms)</tr><tr><td>ddp<td rowspan=2>4<td>1,500</tr>"
    "<tr><td>fsdp</td><td>812.5</td></tr></table>",
    "table.json": json.dumps([PROFILE, {**PROFILE, "batch": 6, "timing": {"it/s": 2.5}}]),
}
COMMON = ("source=x", "workload=w", "num_processes=2", "seq_len=512")


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_a_mutated_table_is_read_or_refused(
    name: str, seed: int, count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is read can be rendered."""
    dice = random.Random(seed)
    text = TEXTS[name]
    for _ in range(count):
        at = dice.randrange(len(text) + 1)
        text = text[:at] + dice.choice(PIECES) + text[at + dice.choice((0, 0, 1, 4)) :]
    folder = tmp_path_factory.getbasetemp()
    try:
        results = imported(folder, text, *COMMON, name=name)
    except InputError:
        return
    rendered(results)
    assert all(Result.model_validate_json(result.model_dump_json()) == result for result in results)


def test_a_row_whose_figures_are_wrong_has_none_where_they_are_imported(tmp_path: Path) -> None:
    wrong = summarize([result(), result(ok(losses=(1.0, math.nan, math.nan)), batch=4)])
    table = frame.text(records(wrong), "csv")
    right, left_out = summarize(imported(tmp_path, table, name="exported.csv")).rows
    assert right.measured
    assert (left_out.outcome, left_out.measured) == ("failed", None)
    assert left_out.reason.startswith("invalid from elsewhere")
