"""The short report, which goes into a pull request and ends a run."""

import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from examples import MACHINE, launched, ok, result, world
from rich.console import Console

from bench.cli.collect import collect
from bench.records.cell import Train
from bench.records.claim import Claim
from bench.records.conditions import Conditions
from bench.records.machine import StatedHardware
from bench.records.outcome import Failed, Oom, Reported
from bench.records.verdict import Goal, Probe, Stopped
from bench.report.doubts import Kind, doubts
from bench.report.missing import Missing
from bench.report.render import markdown, terminal
from bench.report.tables.sections import Choices, Report
from bench.store.run_folder import Store

REPORTS = Path(__file__).parents[3] / "reports"
AXES = {"num_cams": 1}


def brief(*results: Any, **more: Any) -> str:
    return markdown.document(Report(results=results, **more).brief)


def steps(seconds: float, batch: int = 2, backend: str = "ddp", **more: Any) -> Any:
    return result(ok((seconds,) * 3, (seconds,) * 3), batch=batch, backend=backend, **more)


def table(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_heading_is_the_answer_and_how_sure_it_is() -> None:
    text = brief(steps(0.1), steps(0.2, backend="fsdp"))
    heading = text.splitlines()[0]
    assert heading.startswith("## Train with ddp, batch 2: 40.0 samples/s, 2.00× that of fsdp, batch 2 (1.60")
    assert re.search(r"holds unless launches vary by more than \d+\.\d %\)$", heading)
    assert "Larger batches were not tried: `bench probe MATRIX`." in text
    assert "For a surer answer: `bench run MATRIX measure.launches=5`." in text


def test_several_tasks_have_a_line_each() -> None:
    text = brief(steps(0.1, axes={"num_cams": 1}), steps(0.3, axes={"num_cams": 4}))
    assert text.startswith("## What to run\n\n- For num_cams 1: train with ddp, batch 2: 40.0 samples/s")
    assert "\n- For num_cams 4: train with ddp, batch 2: 13.3 samples/s" in text


def test_one_more_is_singular() -> None:
    one_gpu = MACHINE.model_copy(update={"hardware": StatedHardware(device="cuda", devices=1, memory_bytes=None)})
    machine = one_gpu.model_copy(update={"accelerators": ()})
    failures = [
        result(Failed(rank=0, phase="start", reason="x"), axes={"num_cams": number}, machine=machine)
        for number in range(5)
    ]
    text = brief(steps(0.1, machine=machine), *failures)
    assert "1 more attempt failed: see the full report." in text
    assert " on 1 GPU, " in text


def test_rows_of_searches_with_two_headrooms_say_which() -> None:
    results = [steps(0.1), steps(0.2, backend="fsdp")]
    end = Stopped(reason="batch 3 hung")
    probes = [
        Probe(cell=results[0].attempt.cell, axes={"backend": "ddp"}, goal=Goal(headroom=headroom), found=end)
        for headroom in (0.7, 0.9)
    ]
    text = brief(*results, probes=probes)
    assert [row["headroom"] for row in table(text)] == ["70.0 %", "70.0 %", "90.0 %", "90.0 %"]
    assert "Ratios compare with the bold row of their task." in text


def test_tasks_that_are_left_out_are_counted() -> None:
    results = [steps(0.1, axes={"num_cams": number}) for number in range(9)]
    missing = [Missing(cell_id="x", axes={"backend": "ddp"}, batches=(2,))]
    for text in (brief(*results), brief(*results, missing=missing)):
        assert "\n- and 1 more task: see the full report.\n" in text


def test_each_setting_has_a_row_at_its_best_batch_the_fastest_first() -> None:
    text = brief(
        steps(0.2, backend="fsdp"),
        steps(0.3, batch=4, backend="fsdp"),
        steps(0.1),
        steps(0.19, batch=4),
        steps(0.105, backend="zero2"),
        result(Oom(rank=0, phase="bwd", reason="x"), batch=8),
        result(Failed(rank=0, phase="start", reason="ValueError: no such axis"), backend="zero3"),
    )
    rows = table(text)
    assert [(row["backend"], row["batch"], row["verdict"]) for row in rows] == [
        ("ddp", "4", "recommended"),
        ("zero2", "2", "too close to call"),
        ("fsdp", "4", "slower"),
        ("zero3", "", ""),
    ]
    assert rows[0]["samples/s"] == "**42.1**"
    assert re.fullmatch(r"\*\*0\.63×\*\*", rows[2]["ratio"])
    assert rows[3]["remark"] == "failed"
    assert "- Batch 8 ran out of memory: ddp." in text
    assert "- zero3, batch 2 failed: rank 0 in start: ValueError: no such axis" in text


def test_the_words_are_those_of_the_full_report() -> None:
    """One standard of evidence: the ratio of the runner-up has the same interval in the heading and in the table."""
    report = Report(results=[steps(0.1), steps(0.14, backend="fsdp"), steps(0.2, backend="zero2")])
    text = markdown.document(report.brief)
    low, high = re.findall(r"that of fsdp, batch 2 \((\S+) to (\S+?)[;)]", text.splitlines()[0])[0]
    (fsdp,) = [row for row in table(text) if row["backend"] == "fsdp"]
    assert [float(end) for end in fsdp["interval"].split(" to ")] == pytest.approx(
        [1 / float(high), 1 / float(low)], abs=0.01
    )


def test_caveats_say_what_to_know_before_relying_on_it() -> None:
    of = {"metric": "samples_per_s_global", "of": {"backend": "ddp"}}
    claims = (
        Claim.model_validate({"say": "fast", **of, "value": {"at_least": 900}}),
        Claim.model_validate({"say": "slow", **of, "value": {"at_most": 900}}),
    )
    found, cell = Stopped(reason="batch 3 hung"), result().attempt.cell
    ended = Probe(cell=cell, axes={"backend": "ddp"}, goal=Goal(), found=found)
    missing = [Missing(cell_id="x", axes={"backend": "zero2"}, batches=(1, 2))]
    text = brief(
        steps(0.1),
        choices=Choices(claims=claims),
        probes=[ended],
        missing=missing,
        unreadable={"a/result.json": "torn"},
    )
    caveats = text.partition("## Before you rely on it\n\n")[2].partition("\n\n")[0].splitlines()
    assert caveats == [
        "- Not all is measured: 2 attempts are missing.",
        "- The search of ddp ended without an answer: batch 3 hung.",
        "- 1 file cannot be read: see the full report.",
        "- Claim REFUTED: fast: 40.0 samples/s (ddp, batch 2); noise assumed",
        "- 1 claim CONFIRMED.",
    ]
    assert text.startswith("## No advice yet: 2 attempts are missing\n\n- Leading so far: ddp, batch 2: 40.0 samples/s")
    assert "\n- `bench run MATRIX` goes on.\n" in text


def test_rows_that_are_doubted_for_like_reasons_are_one_sentence() -> None:
    apart = [result(ok((s,) * 3, (s / 2,) * 3), batch=batch) for batch, s in ((2, 0.1), (4, 0.2), (8, 0.4))]
    caveats = brief(*apart).partition("## Before you rely on it\n\n")[2].partition("\n\n## ")[0]
    assert len(caveats.splitlines()) == 1
    assert "All 3 rows, such as ddp, batch 2: " in caveats
    quiet = dict.fromkeys(Conditions.model_fields) | {"gpus": (), "others_cpu_share": 0.5}
    failed = result(Oom(rank=0, phase="bwd", reason="x"), batch=16)
    busy = [one.model_copy(update={"conditions": Conditions(**quiet)}) for one in (steps(0.2, 4), failed)]
    assert "Both rows" not in brief(steps(0.1), *busy)
    assert "\n\nBoth rows, for example ddp, batch 2: other processes took 50.0 %" in brief(*map(busy_at, (2, 4)))


def lines_of_caveats(*results: Any) -> list[str]:
    text = brief(*results).partition("## Before you rely on it\n\n")[2].partition("\n\n## ")[0]
    return [line.removeprefix("- ") for line in text.splitlines()]


def busy_at(batch: int, share: float = 0.5, outcome: Any = None, launch: int = 1) -> Any:
    quiet = dict.fromkeys(Conditions.model_fields) | {"gpus": (), "others_cpu_share": share}
    one = result(outcome, batch=batch) if outcome else steps(0.05 * batch, batch)
    return launched(one.model_copy(update={"conditions": Conditions(**quiet)}), launch)


def test_what_failed_or_did_not_fit_comes_before_doubts() -> None:
    failed = busy_at(4, outcome=Failed(rank=1, phase="bwd", reason="planted"))
    oom = busy_at(8, outcome=Oom(rank=0, phase="bwd", reason="x"))
    assert lines_of_caveats(busy_at(2), failed, oom) == [
        "ddp, batch 4 failed: rank 1 in bwd: planted",
        "Batch 8 ran out of memory: ddp.",
        "ddp, batch 2 and 2 other rows: other processes took 50.0 % of the CPU during the attempt.",
    ]


def test_a_doubt_of_several_launches_says_of_how_many() -> None:
    several = [busy_at(2, share, launch=number) for number, share in enumerate((0.3, 0.4, 0.0, 0.5), 1)]
    told = "other processes took 30.0 % of the CPU during the attempt."
    assert lines_of_caveats(*several) == [f"ddp, batch 2: in 3 of 4 launches; launch 1: {told}"]
    assert lines_of_caveats(*several, busy_at(4), steps(0.4, 8)) == [
        f"ddp, batch 2: in 3 of 4 launches; launch 1: {told} 1 other row: the same, with other figures."
    ]


def test_rows_with_the_same_figures_are_the_same_whatever_their_launch() -> None:
    launches = [busy_at(2, share, launch=number) for number, share in enumerate((0.0, 0.5), 1)]
    told = "other processes took 50.0 % of the CPU during the attempt."
    assert lines_of_caveats(*launches, busy_at(4), steps(0.4, 8)) == [f"ddp, batch 2 and 1 other row: {told}"]
    assert lines_of_caveats(*launches) == [f"ddp, batch 2: launch 2: {told}"]


def test_what_leads_in_other_dtypes_than_the_runner_up_is_said_in_one_line() -> None:
    def of(backend: str, step_s: float, **dtypes: str) -> Any:
        ranks = ok((step_s,) * 3, (step_s,) * 3, backend=backend).ranks
        regimes = [rank.regime.model_copy(update=dtypes) for rank in ranks]
        changed = (one.model_copy(update={"regime": new}) for one, new in zip(ranks, regimes, strict=True))
        return result(world(*changed), backend=backend)

    half, single = (dict.fromkeys(("weights_dtype", "reduction_dtype"), dtype) for dtype in ("bfloat16", "float32"))
    mixed = {"weights_dtype": "float32", "reduction_dtype": "bfloat16"}
    zero = of("zero2", 0.1, **half)
    assert lines_of_caveats(zero, of("ddp", 0.2, **single)) == [
        "Weights and summed gradients are bfloat16 in zero2 and float32 in ddp: check that it trains as well."
    ]
    assert lines_of_caveats(zero, of("ddp", 0.2, **mixed), of("fsdp", 0.3, **single)) == [
        "Weights are bfloat16 in zero2 and float32 in ddp: check that it trains as well."
    ]
    assert lines_of_caveats(zero, of("ddp", 0.2, **half), of("fsdp", 0.3, **single)) == []


def test_at_a_global_batch_the_table_has_the_word_of_the_heading() -> None:
    text = brief(steps(0.1, train={"global_batch": 16}), steps(0.2, backend="fsdp", train={"global_batch": 16}))
    assert text.startswith("## At a global batch of 16 on 2 ranks: train with ddp, micro-batch 2, accumulate 4: ")
    assert [(row["micro-batch"], row["accumulate"]) for row in table(text)] == [("2", "4")] * 2
    assert "batch" in table(brief(steps(0.1)))[0]


@pytest.mark.parametrize("count", [7, 8])
def test_no_line_says_that_one_doubt_is_left_out(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [steps(0.05 * batch, batch) for batch in range(1, count + 1)]
    kinds = [
        Kind("inaccurate", lambda summary, n=n: [(summary.rows[n], f"{'x' * (n + 1)}.")])  # type: ignore[misc]
        for n in range(count)
    ]
    monkeypatch.setattr("bench.report.doubts.DOUBT_KINDS", tuple(kinds))
    doubts.cache_clear()
    told = lines_of_caveats(*rows)
    doubts.cache_clear()
    assert len(told) == 7
    assert told[-1] == ("ddp, batch 7: xxxxxxx." if count == 7 else "2 more doubts: see the full report.")


def test_what_ratios_rest_on_is_said_of_launches_and_of_imported_figures() -> None:
    figures = (
        result(Reported(source="p", samples_per_s_global=rate), backend=name, axes={"num_cams": 9})
        for name, rate in (("zero2", 10.0), ("zero3", 5.0))
    )
    text = brief(steps(0.1), steps(0.2, backend="fsdp"), *figures)
    assert "Ratios rest on 1 launch of each setting and imported figures; launches are assumed" in text
    again = [launched(steps(0.2, backend="fsdp"), 1), launched(steps(0.2, backend="fsdp"), 2)]
    assert "Ratios rest on 1 to 2 launches of each setting, 1 of what leads; launches are" in brief(steps(0.1), *again)
    assert "Ratios rest on 1 to 2 launches of each setting; launches are" in brief(steps(0.3), *again)


def test_a_dtype_that_was_not_seen_is_none() -> None:
    bare = steps(0.1, train=Train(optimizer="none"))
    ranks = [
        rank.model_copy(update={"regime": rank.regime.model_copy(update={"masters_dtype": None})})
        for rank in bare.outcome.ranks
    ]
    text = brief(steps(0.2), bare.model_copy(update={"outcome": world(*ranks)}))
    assert "masters_dtype none" in text


def test_a_comparison_that_was_asked_for_is_shown() -> None:
    results = steps(0.1), steps(0.2, backend="fsdp")
    assert "Which backend is faster" not in brief(*results)
    assert "## Which backend is faster" in brief(*results, choices=Choices(reference="ddp"))


def test_without_results_it_says_what_is_missing() -> None:
    assert brief() == ""
    assert "## Not measured" in brief(missing=[Missing(cell_id="x", axes={"backend": "ddp"}, batches=(1,))])


@pytest.mark.parametrize("run", ["cpu-tiny", "published-8xA100", "plan-tiny"])
def test_it_fits_into_a_pull_request(run: str) -> None:
    text = markdown.document(collect([Store(REPORTS / run)]).brief)
    assert len(text.splitlines()) <= 60
    assert len(text) <= 8000


def many_settings() -> Report:
    """Twenty-four settings, some of which fail, do not fit or are doubted."""
    levels = itertools.product(("ddp", "fsdp", "zero2"), (1, 2), ("eager", "sdpa"), (False, True))
    results = [
        steps(0.1 * 1.03**number, backend=backend, axes={"num_cams": cams, "attention": attention, "grad_ckpt": ckpt})
        for number, (backend, cams, attention, ckpt) in enumerate(levels)
    ]
    results[3:5] = [each.model_copy(update={"outcome": Oom(rank=0, phase="bwd", reason="x")}) for each in results[3:5]]
    results[7] = results[7].model_copy(update={"outcome": Failed(rank=1, phase="bwd", reason="RuntimeError: no")})
    return Report(results=results, choices=Choices(free=frozenset({"backend", "num_cams", "attention", "grad_ckpt"})))


@pytest.mark.parametrize("report", [collect([Store(REPORTS / "cpu-tiny")]), many_settings()], ids=["few", "many"])
def test_it_fits_on_a_screen_of_24_lines_and_80_columns(report: Report) -> None:
    file = io.StringIO()
    console = Console(width=80, height=24, file=file, force_terminal=True, color_system=None, highlight=False)
    for part in terminal.screen(report, console):
        console.print(part)
    lines = file.getvalue().splitlines()
    assert len(lines) < 24  # and one that says where the results are
    assert max(map(len, lines)) <= 80
    assert "train with" in lines[0].lower()
    assert "Before you rely on it" in lines
    assert any("bench report --full" in line for line in lines)


def test_what_one_run_lacks_keeps_no_advice_from_another() -> None:
    one, two = steps(0.1, axes={"num_cams": 1}), steps(0.3, axes={"num_cams": 4})
    matrices = {(each.attempt.cell.id, run): run for each, run in ((one, "one"), (two, "two"))}
    missing = [Missing(cell_id="x", axes={"run": "two", "backend": "zero2"}, batches=(1,))]
    text = brief(one, two, matrices=matrices, missing=missing)
    assert "- For num_cams 1: train with ddp, batch 2" in text
    assert "- For num_cams 4: no advice yet: 1 attempt is missing." in text
    assert [row["verdict"] for row in table(text)] == ["recommended", "leading"]


def test_an_answer_of_one_sentence_is_not_lost() -> None:
    """As of a search without an answer, and of rows that are invalid."""
    ended = Probe(
        cell=result().attempt.cell, axes={"backend": "ddp"}, goal=Goal(), found=Stopped(reason="batch 1 hung")
    )
    text = brief(result(Oom(rank=0, phase="bwd", reason="x"), batch=1), probes=[ended])
    assert text.startswith("## What to run\n\nno batch to recommend: batch 1 hung.\n")
    assert "## Nothing to recommend" in brief(result(Failed(rank=0, phase="start", reason="x")))
