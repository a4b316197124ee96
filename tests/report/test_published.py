"""What the report says of the published figures, word for word, and the two runs that are kept as examples."""

import re
import shutil
from pathlib import Path

import pytest
from commands import full_report
from typer.testing import CliRunner

from bench.cli.app import app
from bench.matrix import claims_file
from bench.report.claims import bound, judge_claims
from bench.report.summary import summarize
from bench.store.run_folder import Store

REPORTS = Path(__file__).parents[2] / "reports"
PUBLISHED, CPU_TINY = KEPT = REPORTS / "published-8xA100", REPORTS / "cpu-tiny"
Row = dict[str, str]


@pytest.fixture(scope="module")
def text() -> str:
    """The report as `bench report` prints it."""
    return full_report(PUBLISHED)


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str, title: str, **cells: str) -> list[Row]:
    """The lines of the table below a heading, by column; those that have these cells."""
    header, _, *lines = [line for line in section(text, title).splitlines() if line.startswith("|")]
    names, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *lines)]
    every = [dict(zip(names, one, strict=True)) for one in found]
    return [one for one in every if cells.items() <= one.items()]


@pytest.mark.parametrize(
    ("backend", "num_cams", "batch", "bold"),
    [("fsdp", "1", "12", "16.5"), ("fsdp", "4", "8", "6.97"), ("zero2", "1", "24", "23.6")],
)
def test_the_peak_of_each_cell_is_bold_and_no_other_row_of_it(
    text: str, backend: str, num_cams: str, batch: str, bold: str
) -> None:
    of_cell = rows(text, "All results", backend=backend, num_cams=num_cams, attention="sdpa")
    assert len(of_cell) > 1
    assert {row["batch per rank"]: row["samples/s"] for row in of_cell if "**" in row["samples/s"]} == {
        batch: f"**{bold}**"
    }


def test_matched_batch_and_best_against_best_disagree_side_by_side(text: str) -> None:
    best, matched = rows(text, "Which backend is faster", num_cams="1")
    assert (best["how"], best["batch A"], best["batch B"]) == ("best against best", "12", "24")
    assert best["faster"] == "**zero2 1.43× (1.02 to 2.01)**"
    assert (matched["how"], matched["backend A"], matched["backend B"]) == ("matched batch 8", "fsdp", "zero2")
    assert matched["faster"] == "too close to call, fsdp 1.13× (0.80 to 1.58)"


def test_batches_that_thrash_are_flagged_and_not_recommended(text: str) -> None:
    of_cell = rows(text, "All results", backend="fsdp", num_cams="4", attention="sdpa")
    assert {row["batch per rank"]: row["outcome"] for row in of_cell} == {
        "4": "imported",
        "8": "imported",
        "10": "thrashing",
        "12": "thrashing",
    }
    for batch, held, rate in (("10", "97.6", "6.21"), ("12", "97.3", "4.94")):
        words = f"batch {batch}: thrashing, {held} % of capacity at {rate} samples/s; batch 8 reaches 6.97."
        found = [
            row for row in rows(text, "Rows to doubt") if f"{row['row'].rpartition(', ')[2]}: {row['why']}" == words
        ]
        assert [(row["grade"], row["row"].startswith("fsdp, num_cams 4, ")) for row in found] == [("inaccurate", True)]
    assert not re.search(r"fsdp, [^:]*batch 1[02]\b", section(text, "What to run"))


def test_a_step_that_shrinks_as_the_batch_doubles_is_flagged(text: str) -> None:
    """Of the second model, zero2."""
    (found,) = [row for row in rows(text, "Rows to doubt") if "shorter" in row["why"]]
    assert found["row"].startswith("zero2, num_cams 2, ")
    assert "second model" in found["row"]
    assert found["row"].endswith("batch 16")
    assert found["why"] == "its step (5290 ms) is 6.2 % shorter than that of batch 8 (5640 ms), which has less to do."


def test_unlike_rows_of_the_published_run_are_not_compared(text: str) -> None:
    for num_cams in (1, 4):
        words = (
            rf"^- fsdp, num_cams {num_cams}, attention eager, grad_ckpt off, .* is not compared with"
            rf" zero2, num_cams {num_cams}, attention sdpa, grad_ckpt on, .*: they differ in attention, grad_ckpt\.$"
        )
        assert re.search(words, section(text, "Not compared"), re.MULTILINE)
    assert not rows(text, "Which backend is faster", attention="eager")


HEADLINE = """# source: a headline, fsdp 1.27 times as fast
# workload: pi07-like
# num_processes: 8
# num_cams: 1
backend,attention,grad_ckpt,batch,step_time_ms
fsdp,sdpa,true,12,5831
zero2,eager,false,2,1230
"""
CLAIM = """claims:
  - say: fsdp is 1.27 times faster
    metric: samples_per_s_global
    of: {backend: fsdp}
    against: {backend: zero2}
    where: {batch: best}
    ratio: {at_least: 1.27x}
"""


def test_the_comparison_of_the_headline_is_refused(tmp_path: Path) -> None:
    """fsdp with sdpa and checkpointing against zero2 with eager and without."""
    table, claim = tmp_path / "table.csv", tmp_path / "claims.yaml"
    table.write_text(HEADLINE)
    claim.write_text(CLAIM)
    done = CliRunner().invoke(app, ["import", str(table), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    text = full_report(tmp_path / "run", "--claims", claim)
    assert section(text, "Not compared").strip() == (
        "fsdp, attention sdpa, grad_ckpt on is not compared with zero2, attention eager, grad_ckpt off: they differ in"
        " attention, grad_ckpt."
    )
    assert "## Which backend is faster" not in text
    assert [(row["verdict"], row["found"]) for row in rows(text, "Claims")] == [
        ("**NOT TESTED**", "the two sides also differ in attention, grad_ckpt")
    ]
    loud = full_report(tmp_path / "run", "--allow-unlike", "attention,grad_ckpt")
    assert "UNLIKE in attention, grad_ckpt" in section(loud, "Which backend is faster")


def test_the_three_published_claims_are_refuted_with_the_numbers(text: str) -> None:
    judged = rows(text, "Claims")
    assert [row["verdict"] for row in judged] == ["**REFUTED**"] * 3
    assert [row["expected"] for row in judged[:2]] == [
        "peak_allocated, difference at least 11 GB",
        "step_time_s, difference at least 350 ms and at most 530 ms",
    ]
    assert judged[0]["where"] == "num_cams 1, batch 8"
    assert [(row["claim"], row["found"]) for row in judged] == [
        (
            "zero2 holds 11 GB more than fsdp",
            "36.22 GB (zero2, batch 8) against 43.86 GB (fsdp, batch 8): 7.64 GB less",
        ),
        (
            "fsdp costs about 440 ms more per step",
            "9186 ms (fsdp, batch 8) against 6066 ms (zero2, batch 8): 3120 ms more; noise assumed",
        ),
        (
            "fsdp is 1.27 times faster",
            "16.5 samples/s (fsdp, batch 12) against 23.6 samples/s (zero2, batch 24): 0.70x; noise assumed",
        ),
    ]


def test_phases_that_were_published_in_part_are_shown_in_part(text: str) -> None:
    """Of fsdp and zero2 at 4 cameras and batch 8 the backward passes are known, and nothing else."""
    shown = rows(text, "Phases, mean ms")
    assert [(row["backend"], row["bwd"], row["forward"], row["total"]) for row in shown] == [
        ("fsdp", "6633", "n/a", "n/a"),
        ("zero2", "3900", "n/a", "n/a"),
    ]
    assert "Compare the total between backends" in section(text, "Phases, mean ms")
    assert "## Phases, % of total" not in text
    assert "plots/phases.svg" not in (PUBLISHED / "report-full.md").read_text()


# What is kept of runs


@pytest.mark.parametrize("run", KEPT, ids=lambda run: run.name)
def test_no_bold_verdict_is_inside_its_own_noise(run: Path) -> None:
    """Neither of a claim nor of a comparison."""
    shown, file = full_report(run), run / "claims.yaml"
    claims = claims_file.read(file if file.exists() else run / "matrix.yaml")
    judged = judge_claims(summarize(Store(run).results()), claims)
    verdicts = [row["verdict"] for row in rows(shown, "Claims")]
    assert len(verdicts) == len(judged) > 0
    for one, verdict in zip(judged, verdicts, strict=True):
        if verdict in ("**CONFIRMED**", "**REFUTED**"):
            assert one.interval is not None
            ends = [end for end in (bound(one.claim, "at_least"), bound(one.claim, "at_most")) if end is not None]
            assert not any(one.interval[0] < end < one.interval[1] for end in ends)
    for row in rows(shown, "Which backend is faster"):
        if interval := re.fullmatch(r"\*\*(.+) \S+× \((\S+) to (\S+)\)(, doubted)?\*\*", row["faster"]):
            has_winner = interval[1] in (row["backend A"], row["backend B"])
            assert float(interval[2]) >= 1 or not has_winner


@pytest.mark.parametrize("run", KEPT, ids=lambda run: run.name)
def test_a_stored_report_is_what_the_command_writes(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Path("reports") / run.name  # the page links to the files beside it
    shutil.copytree(run, copy)
    full_report(copy, "--output", copy / "report-full.md")
    assert CliRunner().invoke(app, ["report", str(copy), "--output", str(copy / "report.md")]).exit_code == 0
    full_report(copy, "--format", "html", "--output", copy / "report.html")
    for made in (*copy.glob("report*"), *copy.glob("plots/*")):
        stored = run / made.relative_to(copy)
        assert stored.read_text() == made.read_text(), f"bench report {run} --output {stored}"


@pytest.mark.parametrize("run", KEPT, ids=lambda run: run.name)
def test_what_is_kept_can_be_read_and_names_no_path_of_a_machine(run: Path) -> None:
    store = Store(run)
    assert store.results()
    assert (store.probes() != []) == (run == CPU_TINY)
    assert store.unreadable == {}
    for name in (
        "report.md",
        "report-full.md",
        "report.html",
        "run.json",
        "attempts/**/result.json",
        "attempts/**/walk?.json",
        "**/*.svg",
    ):
        for file in run.glob(name):
            assert not re.search(r"(?<![\w<])/(home|root|tmp|usr|opt|var|work|mnt)/", file.read_text()), file


def test_the_cpu_run_shows_a_search_a_refuted_claim_and_what_ran_out_of_memory() -> None:
    text = full_report(CPU_TINY)
    searched = rows(text, "Batch per rank")
    assert [row["backend"] for row in searched] == ["ddp", "fsdp2", "zero2"]
    for row in searched:
        assert int(row["safe"]) <= int(row["max"]) < int(row["does not fit"])
    outcomes = {row["outcome"] for row in rows(text, "All results")}
    assert {"ok", "oom (short trial)"} <= outcomes
    assert [row["verdict"] for row in rows(text, "Claims")] == ["**REFUTED**", "UNDECIDED"]
