"""`bench report`: which runs, which format, and what was not measured."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import bench, stored
from examples import MACHINE, MATRIX_YAML, ok, result, rss
from examples import stored as stored_results

from bench import machine
from bench.cli import selection
from bench.cli.report_files import write_reports
from bench.matrix import run_plan
from bench.records.cell import Attempt, Train, Walk
from bench.records.outcome import Scripted
from bench.records.rank_outcome import Footprint, Walked
from bench.report.render.formats import FORMATS
from bench.store import spool
from bench.store.run_folder import Store

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("output", ["/", ".", "..", "", "here"])
@pytest.mark.parametrize("kind", ["md", "html", "csv", "parquet"])
def test_a_report_into_a_folder_is_one_message(output: str, kind: str) -> None:
    stored(Path("run"))
    Path("here").mkdir()
    done = bench("report", "run", "--format", kind, "--output", output)
    assert done.exit_code == 2
    assert (
        done.stderr
        == f"bench: {Path(output)}: cannot write there: Is a directory\n  choose another file with --output\n"
    )


def test_a_report_shows_the_newest_run_or_the_one_that_is_named(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        stored(tmp_path / "reports" / name, batch=30 + age)
        os.utime(tmp_path / "reports" / name / "run.json", (time.time() - 60 * age,) * 2)
    newest = bench("report")
    assert newest.stdout == bench("report", "reports/new").stdout
    assert newest.stderr == "the newest run: reports/new\n"
    named = bench("report", "reports/old")
    assert named.exit_code == 0
    assert re.search(r"\| +31 \|", named.output)
    assert not re.search(r"\| +30 \|", named.output)


@pytest.mark.parametrize("arguments", [(), ("missing",), (".",)])
def test_a_report_without_a_run_is_one_message(arguments: tuple[str, ...]) -> None:
    done = bench("report", "--full", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bench: ")
    assert "bench run MATRIX" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "value", ["learning_rate=1e-4", "max_grad_norm=1", "max_grad_norm=1.0", "learning_rate=0.0001"]
)
def test_the_reference_is_read_as_a_matrix_is(value: str, tmp_path: Path) -> None:
    name = value.partition("=")[0]
    records = [
        result(axes={name: one}, train=Train.model_validate({name: one}))
        for one in (getattr(Train(), name) * 2, getattr(Train(), name))
    ]
    store = Store(tmp_path / "run")
    with store.open(MACHINE, [record.attempt.cell for record in records], MATRIX_YAML):
        for record in records:
            store.finish(record)
    sides = []
    for words in (("--compare", name), ("--reference", value)):
        done = bench("report", "--full", "run", *words)
        assert (done.exit_code, done.stderr) == (0, "")
        lines = done.stdout.partition(f"Which {name} is faster\n\n")[2].splitlines()
        headers, cells = ([cell.strip() for cell in line.split("|")] for line in (lines[0], lines[2]))
        sides.append([cells[headers.index(f"{name} {side}")] for side in "AB"])
    assert sides[1] == sides[0][::-1]  # A is the reference, else the first
    assert sides[0][0] != sides[0][1]


def test_claims_that_several_runs_of_one_matrix_share_are_judged_once(tmp_path: Path) -> None:
    claim = "{say: fast, metric: samples_per_s_global, of: {backend: ddp}, value: {at_least: 39}}"
    for folder, batch, more in (("one", 2, ""), ("two", 4, f", {claim.replace('fast', 'faster')}")):
        stored(tmp_path / folder, batch)
        (tmp_path / folder / "claims.yaml").write_text(f"[{claim}{more}]")
    said = bench("report", "--full", "one", "two").stdout.partition("## Claims")[2].partition("\n## ")[0]
    assert [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| fast")] == ["fast", "faster"]


# --- formats --------------------------------------------------------------------------------------------------------


def test_the_option_names_every_format_and_refuses_others() -> None:
    assert "|".join(FORMATS) in bench("report", "--help").stdout
    done = bench("report", "run", "--format", "htlm")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "bench: --format: 'htlm' is not a format\n"
        "  did you mean 'html'?\n  allowed: md, html, csv, json, parquet, svg, png, pdf\n"
    )


@pytest.mark.parametrize("name", ["out.xyz", "out.md.gz", "out.m"])
def test_an_unknown_ending_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    stored(Path("run"))
    done = bench("report", "run", "--output", name)
    assert (done.exit_code, done.stdout) == (2, "")
    ending = Path(name).suffix
    assert done.stderr == (
        f"bench: --output {name}: {ending!r} is not the ending of a format\n"
        "  allowed: .md, .markdown, .html, .htm, .csv, .json, .parquet, .svg, .png, .pdf\n"
        "  or name the format with --format\n"
    )
    assert not Path(name).exists()


def test_no_ending_is_markdown_and_a_named_format_may_have_any_ending() -> None:
    stored(Path("run"))
    for words in (["out"], ["out.markdown"], ["out.xyz", "--format", "md"]):
        assert bench("report", "run", "--output", *words).exit_code == 0
        assert Path(words[0]).read_text().startswith("## Train with ddp, batch 2")


def test_a_reader_that_stops_early_gets_no_traceback(tmp_path: Path) -> None:
    """As in `bench report RUN --output /dev/stdout | head -1`."""
    stored(tmp_path / "run")
    command = [sys.executable, "-m", "bench.cli", "report", "run", "--output", "/dev/stdout", "--format", "html"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writing:
        assert writing.stdout is not None
        assert writing.stderr is not None
        writing.stdout.close()
        assert writing.stderr.read().decode() == ""
    assert writing.returncode == 128 + signal.SIGPIPE


# --- what was not measured ------------------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A run of two cells that was killed during the second attempt of the first."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nmatrix: {backend: [ddp, fsdp], batch: [1, 2]}\nworkload: {name: pi07, preset: tiny}\n"
        "launch: {num_processes: 2}\nmeasure: {warmup_steps: 1, steps: 3, phase_steps: 2}\n"
    )
    matrix, plans, hardware, _ = selection.read(file)
    record, store, cell = machine.record(hardware), Store(tmp_path / "run"), plans[0].cell
    with store.open(record, [plan.cell for plan in plans], matrix.text(), plan=run_plan(matrix, plans)):
        measured = result(machine=record)
        attempt = Attempt(cell=cell, batch_per_rank=1)
        store.begin(attempt)
        store.finish(measured.model_copy(update={"attempt": attempt, "axes": plans[0].axes}))
        (store.begin(Attempt(cell=cell, batch_per_rank=2)) / "rank0.log").write_text("building\n")
    return store


def not_measured(text: str) -> list[list[str]]:
    rows = text.partition("## Not measured\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_report_of_a_killed_run_names_what_it_did_not_reach(killed: Store) -> None:
    done = bench("report", "--full", "run")
    assert (done.exit_code, done.stderr) == (0, "")
    assert not_measured(done.stdout) == [["ddp", "2", "no result yet"], ["fsdp", "1, 2", "no result yet"]]


def test_cells_that_the_run_left_out_on_purpose_are_not_missing(killed: Store) -> None:
    run = json.loads((killed.root / "run.json").read_text())
    (killed.root / "run.json").write_text(json.dumps({**run, "cells": run["cells"][:1]}))
    assert not_measured(bench("report", "--full", "run").stdout) == [["ddp", "2", "no result yet"]]


def test_the_reports_of_several_runs_name_the_run(killed: Store) -> None:
    stored(Path("other"))
    assert [row[0] for row in not_measured(bench("report", "--full", "run", "other").stdout)] == [
        "run run, ddp",
        "run run, fsdp",
    ]


@pytest.mark.parametrize("content", ["", "matrix: [", "matrix: {backend: [nope]}", None], ids=str)
def test_a_report_reads_what_the_run_planned_and_not_its_matrix(killed: Store, content: str | None) -> None:
    file = killed.root / "matrix.yaml"
    file.unlink()
    if content is not None:
        file.write_text(content)
    done = bench("report", "--full", "run")
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(not_measured(done.stdout)) == 2


def test_a_torn_result_is_named_in_the_report_and_on_stderr(killed: Store) -> None:
    (torn,) = killed.root.glob("attempts/ddp-*/b1/result.json")
    torn.write_text("{")
    stored(Path("other"), batch=4)
    done = bench("report", "--full", "run", "other", "--output", "both.md")
    assert done.exit_code == 0
    assert f"bench: left out: {Path('run') / torn.relative_to(killed.root)}: " in done.stderr
    rows = not_measured(Path("both.md").read_text())
    assert rows[0] == ["run run, ddp", "1, 2", "no result yet"]
    assert rows[-1][0] == str(Path("run") / torn.relative_to(killed.root))
    assert rows[-1][2].startswith("cannot be read: ")


def test_a_run_writes_what_it_did_not_reach_into_its_own_report(killed: Store) -> None:
    write_reports(killed)
    assert len(not_measured((killed.root / "report-full.md").read_text())) == 2


def test_a_stopped_search_says_how_far_its_walk_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "mine.yaml"
    file.write_text("matrix: {backend: ddp, batch: probe}\nworkload: {name: pi07, preset: tiny}\n")
    matrix, [plan], hardware, _ = selection.read(file, ["launch.num_processes=2"])
    store = Store(tmp_path / "run")
    with store.open(machine.record(hardware), [plan.cell], matrix.text(), plan=run_plan(matrix, [plan])):
        folder = store.begin(Walk(cell=plan.cell, batches_per_rank=(1, 2, 4)))
        for rank, batches in enumerate(((1, 2, 4), (1, 2))):  # the other rank was still in its third batch
            marks = tuple(
                Footprint(batch_per_rank=batch, memory=rss(1.0), step_time_s=0.1, samples=batch) for batch in batches
            )
            spool.write(folder / f"walk{rank}.json", Walked(rank=rank, footprints=marks))
    write_reports(store)
    assert not_measured((store.root / "report-full.md").read_text())[0][1:] == [
        "search",
        "no result yet; a walk trained batches up to 2",
    ]
    assert "a walk trained batches up to 2" in bench("report", "--full", "run").stdout


def test_a_copy_without_its_scripts_names_none(killed: Store) -> None:
    assert "command.sh" not in bench("report", "--full", "run").stdout
    (script,) = (folder / "command.sh" for folder in killed.root.glob("attempts/ddp-*/b1"))
    script.write_text("#!/bin/sh\n")
    assert "b&lt;batch&gt;/command.sh measures that row again by hand" in bench("report", "--full", "run").stdout
    for words in (("ddp", "run"), ("ddp", "batch=1", "run"), ("backend=ddp", "run", "batch=1"), ("batch=1", "run")):
        assert "command.sh" in bench("show", *words).stdout
    script.unlink()
    assert "command.sh" not in bench("show", "ddp", "run").stdout


# --- choices --------------------------------------------------------------------------------------------------------


def test_a_choice_decides_what_is_a_requirement() -> None:
    """By default each camera count has an answer; with --choice num_cams, each backend has one."""
    cells = [("ddp", 1, 0.1), ("ddp", 4, 0.2), ("zero2", 1, 0.3), ("zero2", 4, 0.4)]
    stored_results(Path("run"), [result(ok((s,) * 3, (s,) * 3), backend=b, axes={"num_cams": n}) for b, n, s in cells])

    def answers(*choice: str) -> list[str]:
        lines = bench("report", "--full", "run", *choice).stdout.splitlines()
        return [line.partition(", batch")[0] for line in lines if "train with" in line]

    assert answers() == ["- For num_cams 1: train with ddp", "- For num_cams 4: train with ddp"]
    assert answers("--choice", "num_cams") == [
        "- For backend ddp: train with ddp, num_cams 1",
        "- For backend zero2: train with zero2, num_cams 1",
    ]
    assert answers("--choice", "num_cams", "--choice", "backend") == ["- train with ddp, num_cams 1"]
    done = bench("report", "run", "--choice", "num_cmas")
    assert done.exit_code == 2
    assert "did you mean 'num_cams'?" in done.stderr


OWN = """
import torch

def own(width: int = 4, kind: str = "a"):
    return torch.nn.Linear(width, width), torch.zeros(8, 4), torch.nn.MSELoss()
"""
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
STEPS = "measure: {warmup_steps: 1, steps: 3, phase_steps: 2}\n"
WAYS = {
    "bundled": "workload: {preset: tiny}\nmatrix: {backend: [ddp, zero2], batch: [2, 4]}\n" + STEPS,
    "own": "workload: {name: ./OWN.py:own}\n"
    "matrix: {backend: ddp, width: [4, 8, 16], kind: [a, 'true', c d], batch: 2}\n" + STEPS,
    "config": "workload: {preset: tiny}\n"
    "matrix: {backend: [ddp, {name: mine, config_file: fsdp.yaml}], batch: 2}\n" + STEPS,
    "script": 'command: [python, own.py, "{batch}", "{out}", "{num_processes}"]\nmatrix: {batch: 2}\n',
}  # fmt: skip


SELECTED = {"config": ["backend=mine"], "own": ["width=8,16", 'kind=a,"true"']}
"""What the first command selects."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("folder", ["reports/way", "a folder/of mine"])
def test_a_command_of_the_advice_can_be_pasted(tmp_path: Path, way: str, folder: str) -> None:
    """It measures the same cells in the same folder: from the run's own matrix, wherever the first one is."""
    source, module = tmp_path / "project", f"own_{way}_{len(folder)}"  # a process imports a name once
    source.mkdir()
    for name, text in ((f"{module}.py", OWN), ("fsdp.yaml", FSDP), ("way.yaml", WAYS[way])):
        (source / name).write_text(text.replace("OWN", module))
    select = SELECTED.get(way, [])
    selected = selection.read(Path("project/way.yaml"), select=select)
    records = [
        result(Scripted(step_time_s_per_rank=(0.1,)) if way == "script" else ok()).model_copy(
            update={"attempt": Attempt(cell=plan.cell, batch_per_rank=batch)}
        )
        for plan in selected.plans
        for batch in plan.batches
    ]
    hardware = MACHINE.model_copy(update={"hardware": selected.hardware})
    store = Store(Path(folder))
    planned = run_plan(selected.matrix, selected.every)
    with store.open(hardware, [plan.cell for plan in selected.plans], selected.matrix.text(), plan=planned):
        for record in records:
            store.finish(record)
    write_reports(store)
    said = bench("report", "--full", folder).stdout
    assert [*re.findall(r"`(bench run .*?)`", said)] == [
        *re.findall(r"`(bench run .*?)`", (store.root / "report-full.md").read_text())
    ]
    words = shlex.split(re.findall(r"`(bench run .*?)`", said)[-1])
    assert words[:3] == ["bench", "run", f"{folder}/matrix.yaml"]
    options = [word for condition in select for word in ("--select", condition)]
    assert words[3:] == [*options, *(["--out", folder] if folder != "reports/way" else []), "measure.launches=5"]
    first, pasted = bench("run", "project/way.yaml", *options, "--dry-run"), bench(*words[1:], "--dry-run")
    assert (first.exit_code, pasted.exit_code) == (0, 0), pasted.output
    slugs = [re.findall(r"^(\S+-[0-9a-f]{10})  ", done.stdout, re.MULTILINE) for done in (first, pasted)]
    assert slugs[0] == slugs[1] == [plan.cell.slug for plan in selected.plans]
    assert "5 launches each" in pasted.stdout


def test_the_advice_names_the_matrix_of_its_own_run_and_goes_on_where_the_run_ran() -> None:
    """Of two runs with the same cell, each answer has the command of its own; a run in jobs goes on in jobs."""
    for name in ("one", "two"):
        stored(Path(name))
    Path("two/slurm").mkdir()
    commands = re.findall(r"`(bench run .*?)`", bench("report", "--full", "one", "two").stdout)
    assert commands == [
        "bench run one/matrix.yaml --out one measure.launches=5",
        "bench run two/matrix.yaml --out two --launcher slurm measure.launches=5",
    ]
    Path("one/matrix.yaml").unlink()
    assert "`bench run MATRIX measure.launches=5`" in bench("report", "--full", "one").stdout
