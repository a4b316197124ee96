"""Everything about one cell, and which cell a user means."""

import json
from pathlib import Path

import pytest
from commands import bench
from examples import MACHINE, MATRIX_YAML, launched, ok, result, rss

from bench.errors import InputError
from bench.records.cell import Train, Walk
from bench.records.outcome import Failed, Oom
from bench.records.outcome import Result as Record
from bench.records.plan import CellPlan
from bench.records.rank_outcome import Footprint, Walked
from bench.records.verdict import Goal, Probe, Verdict
from bench.report.find_cell import find_cell
from bench.report.summary import summarize
from bench.report.tables.show import Files, Verbatim, show, title
from bench.report.tables.table import Table
from bench.store.run_folder import Store
from bench.store.spool import write

FSDP = {"num_cams": 4, "grad_ckpt": True}


def records() -> list[Record]:
    failed = Failed(rank=1, phase="bwd", reason="ValueError: planted")
    return [
        result(ok((0.1, 0.1, 0.1), (0.1, 0.2, 0.3), backend="fsdp"), backend="fsdp", axes=FSDP),
        result(failed, backend="fsdp", axes=FSDP, batch=4),
        result(backend="fsdp", axes={"num_cams": 1, "grad_ckpt": True}),
        result(axes={"num_cams": 1, "grad_ckpt": False}),
    ]


def tables(results: list[Record], **more: object) -> dict[str, Table]:
    return {part.title: part for part in show(results, {}, **more) if isinstance(part, Table)}  # type: ignore[arg-type]


def test_the_outcome_of_an_attempt_and_its_reason_are_those_of_the_whole_run() -> None:
    sound, wrong = (result(backend=name) for name in ("ddp", "fsdp"))
    wrong = wrong.model_copy(update={"outcome": ok((0.1,) * 3, (0.1,) * 3, losses=(9.0, 9.0, 9.0), backend="fsdp")})
    attempts = tables([wrong], whole=summarize([sound, wrong, result(backend="zero2")]))["Attempts"]
    assert attempts.rows[0][1] == "invalid"
    assert "its losses differ" in attempts.rows[0][-1]


# Which cell


def meant(words: str) -> list[str]:
    return [each.attempt.slug for each in find_cell(records(), words)]


def test_a_cell_is_found_by_id_folder_beginning_and_settings() -> None:
    cell = records()[0].attempt.cell
    for words in (
        cell.id,
        cell.slug,
        cell.id[:6],
        cell.slug[:9],
        "backend=fsdp num_cams=4",
        "num_cams=4",
        "options.num_cams=4",
        "num_cams=4 grad_ckpt=on",
        "num_cams=4 grad_ckpt=true",
        "num_cams=4 measure.steps=3 num_processes=2",
        "fsdp num_cams=4 grad_ckpt=true",
    ):
        assert meant(words) == [f"{cell.slug}/b2", f"{cell.slug}/b4"], words
    assert meant("ddp") == [records()[3].attempt.slug]
    for words in ("num_cams=4 batch=4", f"{cell.slug} batch=4", f"batch=4 {cell.id}"):
        assert meant(words) == [f"{cell.slug}/b4"]


@pytest.mark.parametrize("mode", ["a b", "c", 'b,c=|d"é 😀', "a x=1", "a num_cams=4", " ", "a  b"])
def test_a_value_may_hold_spaces_quotes_and_what_looks_like_a_setting(mode: str) -> None:
    cells = [result(axes={"mode": each, "num_cams": 4}) for each in ("a", mode)]
    plan = CellPlan(cell=cells[1].attempt.cell, batches=(2,), axes={"backend": "ddp", **cells[1].axes})
    for words in (f"mode={mode}", f"mode={mode} num_cams=4", f"num_cams=4 mode={mode}", plan.label):
        assert find_cell(cells, words) == cells[1:], words
    assert find_cell(cells, f"mode={json.dumps(mode, ensure_ascii=False)} batch=2") == cells[1:]


def test_at_a_global_batch_a_row_is_found_by_its_micro_batches() -> None:
    several = [result(batch=batch, train={"global_batch": 32}) for batch in (4, 16)]
    for words in ("backend=ddp accumulate=4", "ddp batch=4", "ddp micro-batch=4"):
        assert find_cell(several, words) == several[:1]
    with pytest.raises(InputError, match="no step has accumulate=3"):
        find_cell(several, "ddp accumulate=3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fsdp", "'fsdp' matches 2 cells"),
        ("backend=fsdp", "'backend=fsdp' matches 2 cells"),
        ("fspd", "no cell is called 'fspd'"),
        ("", "no cell is called ''"),
        ("num_cmas=4", "no cell has a setting called 'num_cmas'"),
        ("num_cams=3", "no cell has num_cams=3"),
        ("backend=ddp num_cams=4", "no cell has num_cams=4 among those that match what is before it"),
        ("backend=ddp fsdp", "no cell has backend=ddp fsdp"),
        ("ddp num_cams=4", "no cell has num_cams=4 among those that match what is before it"),
        ("batch=4", "'batch=4' matches 3 cells"),
        ("num_cams=4 batch=3", "the cell has no result of batch=3"),
    ],
)
def test_none_or_several_is_said(words: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        meant(words)
    assert refusal.value.problem == message


def test_hints() -> None:
    def said(words: str) -> str:
        with pytest.raises(InputError) as refusal:
            meant(words)
        return str(refusal.value)

    assert "did you mean 'num_cams'?" in said("num_cmas=4")
    assert "did you mean 'fsdp'?" in said("backend=fspd")
    assert "allowed: 4, 1" in said("num_cams=3")
    cell = records()[0].attempt.cell
    assert f"did you mean '{cell.slug}'?" in said(cell.slug[:-1] + "x")
    assert f"{cell.slug} (backend=fsdp num_cams=4 grad_ckpt=true)" in said("fsdp")


def test_cells_with_the_same_axes_are_told_apart_by_another_setting() -> None:
    axes = {"num_cams": 1}
    same = [result(axes=axes, memory_limit_bytes=limit) for limit in (2**28, 2**29, None)]
    with pytest.raises(InputError) as refusal:
        find_cell(same, "ddp")
    assert [
        f"(backend=ddp num_cams=1 memory_limit_bytes={limit})" in str(refusal.value.allowed)
        for limit in ("268435456", "536870912", "null")
    ] == [True, True, True], refusal.value.allowed


def test_a_run_without_results() -> None:
    with pytest.raises(InputError, match="holds no results"):
        find_cell([], "fsdp")


# What is shown


def test_the_title_names_the_cell() -> None:
    cell = records()[0].attempt.cell
    assert title(records()[:2]) == f"fsdp, num_cams 4, grad_ckpt on ({cell.slug})"


def test_the_time_of_the_host_and_bound_cores_have_columns_once_there_are_any() -> None:
    plain = tables([result()])
    assert "host busy or blocked ms" not in str(plain["Ranks"])
    assert "cores" not in str(plain["What actually ran"])
    measured = ok((0.1, 0.1, 0.1), (0.1, 0.1, 0.1))
    known = [rank.model_copy(update={"host_times_s": (0.02, 0.03, 0.04), "cores": 7}) for rank in measured.ranks]
    bound = tables([result(measured.model_copy(update={"ranks": tuple(known)}), train=Train(cpu_affinity=True))])
    assert "host busy or blocked ms" in str(bound["Ranks"])
    assert "30.0" in str(bound["Ranks"])
    assert "cores" in str(bound["What actually ran"])


def test_settings_attempts_regime_and_ranks() -> None:
    shown = tables(records()[:2])
    assert next(iter(shown)) == "Attempts"
    settings = dict(shown["Settings"].rows)
    assert settings["backend"] == "fsdp"
    assert settings["options.num_cams"] == "4"
    assert settings["measure.steps"] == "3"
    assert [row[:2] for row in shown["Attempts"].rows] == [("2", "ok"), ("4", "failed")]
    assert shown["Attempts"].rows[0][2] == "20.0"  # 2 x 2 / 0.2 s
    assert shown["Attempts"].rows[1][-1] == "rank 1 in bwd: ValueError: planted"
    assert [row[:6] for row in shown["What actually ran"].rows] == [
        (str(rank), "FSDP", "FULL_SHARD", "2", "1,000", "900") for rank in (0, 1)
    ]
    assert [row[:7] for row in shown["Ranks"].rows] == [
        ("2", "0", "100", "100", "n/a", "1000", "500"),
        ("2", "1", "200", "200", "n/a", "1000", "500"),
    ]
    assert {"Phases, mean ms", "Phases, % of total", "Steps"} <= set(shown)
    assert shown["Steps"].rows[0][-2:] == ("2.000", "0.5000")


def test_a_global_batch_accumulates_another_number_of_times_at_each_batch() -> None:
    shown = tables([result(batch=batch, train={"global_batch": 32}) for batch in (4, 16)])
    assert "accumulate" not in tables([result()])["Attempts"].headers
    assert [row[:2] for row in shown["Attempts"].rows] == [("4", "4"), ("16", "1")]
    assert shown["Attempts"].headers[1] == "accumulate"
    settings = dict(shown["Settings"].rows)
    assert settings["train.global_batch"] == "32"
    assert "train.accumulate" not in settings


def test_launches_of_an_attempt_are_told_apart() -> None:
    one = records()[0]
    shown = tables([one, launched(one, 2), launched(one, 3)])
    for table in ("Attempts", "Wall time, s"):
        assert [row[0] for row in shown[table].rows] == ["2", "2 (launch 2)", "2 (launch 3)"], table


def test_each_launch_has_its_own_reasons() -> None:
    nan, good = result(ok(losses=(1.0, float("nan")))), result()
    shown = tables([nan, launched(nan, 2), launched(good, 3)])["Attempts"]
    assert [row[-1] for row in shown.rows] == [
        "the loss is not a finite number.",
        "the loss is not a finite number.",
        "launch 1: the loss is not a finite number.",  # which spoils the row
    ]


def test_the_search_and_its_walk() -> None:
    (one,) = records()[3:]
    verdict = Verdict(
        max_batch_per_rank=12, certificate="next_fails", fits=12, fails=13, best=None, safe=None, points=1,
        thrashing=(), why="13 ran out",
    )  # fmt: skip
    probe = Probe(cell=one.attempt.cell, axes=one.axes, goal=Goal(), found=verdict)
    marks = tuple(Footprint(batch_per_rank=batch, memory=rss(1.0), step_time_s=0.1, samples=batch) for batch in (1, 2))
    walked = [Walked(rank=rank, footprints=marks) for rank in (0, 1)]
    shown = tables([one], probe=probe, walked=walked)
    assert shown["Batch per rank"].rows[0][1:3] == ("12", "13")
    assert [row[:3] for row in shown["Walk"].rows] == [(b, r, "100") for b in "12" for r in "01"]
    assert not {"Batch per rank", "Walk"} & set(tables([one]))


def test_the_command_once_and_the_logs_of_what_went_wrong() -> None:
    results = records()[:2]
    files = {
        each.attempt.slug: Files(folder="here", command="#!/bin/sh\n", log_tails={"rank1.log": "the\x1b[31m end\n"})
        for each in results
    }
    verbatim = [part for part in show(results, files) if isinstance(part, Verbatim)]
    assert [(part.title, part.text) for part in verbatim] == [
        ("command.sh of batch 2, 4", "#!/bin/sh\n"),
        ("End of rank1.log, batch 4: failed", "the[31m end\n"),
    ]


# The command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "reports" / "run"
    store = Store(folder)
    oom = Oom(rank=0, phase="bwd", reason="out of memory")
    results = [*records(), result(oom, batch=64, axes={"num_cams": 1, "grad_ckpt": False})]
    with store.open(MACHINE, [each.attempt.cell for each in results], MATRIX_YAML):
        for each in results:
            left = store.begin(each.attempt)
            (left / "command.sh").write_text("#!/bin/sh\nrun it\n")
            (left / "rank0.log").write_text("".join(f"line {number} ``` <b>\n" for number in range(50)))
            (left / "rank1.log").write_text("\n")
            store.finish(each)
        walk = Walk(cell=results[0].attempt.cell, batches_per_rank=(1,))
        left = store.begin(walk)
        for rank in (0, 1):
            mark = Footprint(batch_per_rank=1, memory=rss(1.0), step_time_s=0.1, samples=1)
            write(left / f"walk{rank}.json", Walked(rank=rank, footprints=(mark,)))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_command_shows_a_cell_of_the_newest_run_or_of_the_one_that_is_named(run: Path) -> None:
    done = bench("show", "backend=fsdp", "num_cams=4")
    assert done.exit_code == 0, done.output
    for other in (("backend=fsdp num_cams=4",), (records()[0].attempt.cell.id,)):
        assert bench("show", *other).stdout == done.stdout
    named = bench("show", "num_cams=4", "backend=fsdp", str(run))
    assert named.stdout.replace(str(run), "reports/run") == done.stdout
    assert "**From the run reports/run**" in done.stdout
    assert "## Walk" in done.stdout
    assert "    run it\n" in done.stdout
    assert f"reports/run/attempts/{records()[1].attempt.slug}" in done.stdout
    assert "## End of rank0.log, batch 4: failed" in done.stdout
    assert "    line 49 ``` <b>\n" in done.stdout
    assert "line 29" not in done.stdout
    assert "rank1.log" not in done.stdout


@pytest.mark.parametrize("arguments", [("fspd",), ("fsdp",), ("num_cams=9",), ("ddp", "reports/none"), ("a", "b", "c")])
def test_a_wrong_cell_or_run_is_one_message(run: Path, arguments: tuple[str, ...]) -> None:
    done = bench("show", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bench: ")
    assert "Traceback" not in done.stderr


def test_a_backend_s_name_means_no_other_one_that_begins_alike() -> None:
    other = result(backend="zero2")
    with pytest.raises(InputError, match="no cell is called 'zero'"):
        find_cell([other], "zero")
    assert find_cell([other], "zero2") == [other]
    assert find_cell([other], other.attempt.cell.slug[:-3]) == [other]
