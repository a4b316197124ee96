"""The command line as a user meets it: quick help, one message for bad input, and exit codes that say what happened."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples import MACHINE, ok, result, rss
from typer.testing import CliRunner, Result

from bench import __version__, machine
from bench.backends import BACKENDS
from bench.cli import app, selection
from bench.records.cell import Attempt, Train
from bench.records.outcome import Result as Record
from bench.records.verdict import Answer, Goal, Probe, Verdict
from bench.store.run_folder import Store

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "matrices" / "quickstart.yaml")
ALL_EIGHT = str(ROOT / "matrices" / "backends.yaml")
TORCH_SIDE = {"torch", "accelerate", "deepspeed", "transformers", "pandas"}


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", raising=False)


def imported(*arguments: str, cwd: Path) -> set[str]:
    """Top-level packages that the command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "bench.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"bench", "typer"} <= packages
    return packages


def test_help_imports_next_to_nothing(tmp_path: Path) -> None:
    assert not imported("--help", cwd=tmp_path) & (TORCH_SIDE | {"pydantic", "yaml", "psutil"})


def test_a_dry_run_needs_no_torch_and_leaves_no_trace(tmp_path: Path) -> None:
    assert not imported("run", QUICKSTART, "--dry-run", cwd=tmp_path) & TORCH_SIDE
    assert list(tmp_path.iterdir()) == []


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    stored(tmp_path / "reports" / "mine")
    assert not imported("report", cwd=tmp_path) & TORCH_SIDE


def stored(folder: Path, batch: int = 2) -> Record:
    record = result(batch=batch)
    store = Store(folder)
    with store.open(MACHINE, [record.attempt.cell], ""):
        store.begin(record.attempt)
        store.finish(record)
    return record


COMMANDS = ("run", "probe", "report", "compare", "show", "schema", "doctor")


def test_help_names_every_command() -> None:
    done = bench("--help")
    assert done.exit_code == 0
    assert all(command in done.output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = bench(command, "--help")
    assert done.exit_code == 0
    assert f" {command} " in done.output


@pytest.mark.parametrize("output", ["/", ".", "..", "", "here"])
@pytest.mark.parametrize("kind", ["md", "html", "csv", "parquet"])
def test_a_report_into_a_folder_is_one_message(output: str, kind: str) -> None:
    stored(Path("run"))
    Path("here").mkdir()
    done = bench("report", "run", "--format", kind, "--output", output)
    assert done.exit_code == 2
    assert done.stderr == f"bench: {Path(output)}: cannot write there: Is a directory\n  see --output\n"


def test_a_dry_run_shows_every_cell_with_what_it_would_be_launched_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = bench("run", QUICKSTART, "--dry-run").output
    for backend in ("single", "ddp", "fsdp2", "zero2"):
        assert f"{backend}-" in output
    assert output.count("accelerate.yaml:\n") == output.count("  command of each batch: ") == 4
    assert "mixed_precision: bf16" in output
    assert "fsdp_transformer_layer_cls_to_wrap: InterleavedLayer" in output


def test_a_dry_run_says_what_would_be_skipped() -> None:
    output = bench("run", QUICKSTART, "--dry-run", "--axis", "backend=zero3", "workload.grad_ckpt=true").output
    assert "skipped: ZeRO-3 with gradient checkpointing" in output
    assert "accelerate.yaml" not in output


def test_a_search_has_a_dry_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output = bench("probe", "--backend", "fsdp,zero2", "--dry-run", "--max-batch", "64", "--tolerance", "3%").output
    assert "fsdp  batch per rank probe" in output
    assert output.count("  search: max_batch 64, granularity 1, tolerance 3.0 %, headroom 90.0 %\n") == 2
    assert output.count("  memory limit: 320 MiB a rank, enforced\n") == 2
    assert output.count("  command of each batch: ") == output.count("/b<batch>\n") == 2


def test_a_search_is_narrowed_as_a_run_is() -> None:
    def cells(*options: str) -> list[str]:
        done = bench("probe", "matrix.yaml", "--dry-run", *options)
        assert done.exit_code == 0, done.output
        return re.findall(r"^\w+-\w+  (.+)  batch per rank probe$", done.output, re.MULTILINE)

    Path("matrix.yaml").write_text(
        "workload: {preset: tiny}\nmatrix: {backend: [ddp, fsdp], batch: 1}\ninclude: [{backend: zero2}]\n"
    )
    assert cells() == ["ddp", "fsdp", "zero2"]
    assert cells("--backend", "ddp") == ["ddp"]
    assert cells("--backend", "ddp,zero2", "--exclude", "backend=ddp") == ["zero2"]
    assert cells("--select", "backend=fsdp", "--axis", "num_cams=1,2") == ["fsdp num_cams=1", "fsdp num_cams=2"]


def test_a_search_takes_no_batch_of_the_file_for_its_own() -> None:
    output = bench("probe", ALL_EIGHT, "--dry-run").output
    assert output.count("  batch per rank ") == output.count("  batch per rank probe\n") == 8
    assert "\nbench probe searches every cell and ignores the batches of the matrix" in output


@pytest.mark.parametrize("of", ["matrix", "result"])
def test_a_schema_is_json_schema(of: str) -> None:
    done = bench("schema", of)
    assert done.exit_code == 0
    schema = json.loads(done.output)
    assert schema["type"] == "object"
    assert schema["title"]
    assert schema["additionalProperties"] is False
    assert set(schema.get("required", [])) <= set(schema["properties"])
    named = {part.rpartition("/")[2] for part in _references(schema)}
    assert named <= set(schema.get("$defs", {}))


def _references(node: object) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return here + [found for item in node.values() for found in _references(item)]


def test_the_result_schema_names_the_fields_of_a_stored_result(tmp_path: Path) -> None:
    record = stored(tmp_path / "run")
    text = (tmp_path / "run" / "attempts" / record.attempt.slug / "result.json").read_text()
    assert Record.model_validate_json(text) == record
    assert set(json.loads(text)) == set(json.loads(bench("schema", "result").output)["properties"])


# --- report ---------------------------------------------------------------------------------------------------------


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
    done = bench("report", *arguments)
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
    with store.open(MACHINE, [record.attempt.cell for record in records], ""):
        for record in records:
            store.finish(record)
    sides = []
    for words in (("--compare", name), ("--reference", value)):
        done = bench("report", "run", *words)
        assert (done.exit_code, done.stderr) == (0, "")
        lines = done.stdout.partition(f"Which {name} is faster\n\n")[2].splitlines()
        headers, cells = ([cell.strip() for cell in line.split("|")] for line in (lines[0], lines[2]))
        sides.append([cells[headers.index(f"{name} {side}")] for side in "AB"])
    assert sides[1] == sides[0][::-1]  # A is the reference, else the first
    assert sides[0][0] != sides[0][1]


def test_claims_that_several_runs_of_one_matrix_share_are_judged_once(tmp_path: Path) -> None:
    claim = "{say: fast, metric: samples_per_s, of: {backend: ddp}, value: {at_least: 39}}"
    for folder, batch, more in (("one", 2, ""), ("two", 4, f", {claim.replace('fast', 'faster')}")):
        stored(tmp_path / folder, batch)
        (tmp_path / folder / "claims.yaml").write_text(f"[{claim}{more}]")
    said = bench("report", "one", "two").stdout.partition("## Claims")[2].partition("\n## ")[0]
    assert [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| fast")] == ["fast", "faster"]


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["2", "04", ""])
@pytest.mark.parametrize(
    "command", [("run", QUICKSTART), ("probe", "--backend", "ddp"), ("run", QUICKSTART, "--dry-run")]
)
def test_accumulation_through_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: str, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
    done = bench(*command, "--out", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert f"bench: environment: ACCELERATE_GRADIENT_ACCUMULATION_STEPS: {steps!r}" in done.stderr
    assert "throughput would be too high" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--unknown",),
        ("unknown",),
        ("run",),
        ("run", QUICKSTART, "--unknown"),
        ("run", QUICKSTART, "--rerun", "some"),
        ("run", QUICKSTART, "--isolation", "none"),
        ("report", "a", "b"),
        ("schema", "report"),
        ("doctor", "me"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = bench("run", QUICKSTART, "--out", str(tmp_path / "file" / "run"))
    assert done.exit_code == 2
    assert "cannot write there" in done.stderr


# --- doctor ---------------------------------------------------------------------------------------------------------


def test_the_doctor_names_every_backend_and_library() -> None:
    done = bench("doctor")
    assert done.exit_code == 0, done.output
    subjects = [line.split()[1] for line in done.output.splitlines()]
    assert set(BACKENDS) <= set(subjects)
    assert {"device", "ranks", "torch", "accelerate", "deepspeed", "transformers"} <= set(subjects)


def test_the_doctor_ends_with_1_when_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.machine.hardware.LIBRARIES", ("torch", "transformers", "accelerate"))
    done = bench("doctor")
    assert done.exit_code == 1
    assert [line for line in done.output.splitlines() if line.startswith("missing")] == [
        "missing  deepspeed       not installed: pip install deepspeed"
    ]


def test_the_doctor_takes_what_compiles_for_missing_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("bench.cli.checks.shutil.which", lambda tool: None if tool == "c++" else tool)
    done = bench("doctor")
    assert done.exit_code == 1
    missing = [line.split()[1] for line in done.output.splitlines() if line.startswith("missing")]
    assert missing == ["compiler", "zero1", "zero2", "zero3"]


def test_selected_batches_of_a_searched_cell_are_advised_on_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is launched: all that is asked for is stored. The search's answer, batch 2, is not asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nmatrix: {backend: [ddp], batch: [1, probe]}\nworkload: {name: pi07, preset: tiny}\n")
    _, [plan], hardware = selection.read(file)
    cell, store = plan.cell, Store(tmp_path / "run")
    record = machine.record(hardware)
    answer = Answer(batch=2, samples_per_s=20, held=0.5, confirmed=True)
    found = Verdict(
        max_batch_per_rank=2,
        certificate="cap_fits",
        fits=2,
        fails=None,
        best=answer,
        safe=answer,
        points=2,
        thrashing=(),
        why="2 fits",
    )
    with store.open(record, [cell], file.read_text()):
        for batch in (1, 2):
            outcome = ok(*((0.1,) * cell.measure.steps,) * 2, memory=rss(4.0))
            measured = result(outcome, machine=record)
            attempt = Attempt(cell=cell, batch_per_rank=batch)
            store.finish(measured.model_copy(update={"attempt": attempt, "axes": plan.axes}))
        store.finish_probe(Probe(cell=cell, axes=plan.axes, goal=Goal(max_batch=2), found=found))
    done = bench("run", str(file), "--out", str(store.root), "--select", "batch=1")
    assert done.exit_code == 0, done.output
    assert "train with ddp, batch 1:" in done.output
    assert "nothing to train with" not in done.output


def test_the_version_is_told() -> None:
    done = bench("--version")
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_an_audit_is_of_one_batch() -> None:
    done = bench("audit", "dataloader", QUICKSTART, "--select", "batch=1")
    assert done.exit_code == 2
    assert done.stderr == "bench: --select batch: an audit looks at one batch\n  --batch says at which\n"


def test_a_value_that_an_option_does_not_take_is_told_without_the_library_s_words() -> None:
    done = bench("schema", "foo")
    assert done.exit_code == 2
    assert "'foo' is not one of 'matrix', 'result'" in done.stderr
    assert "Value error" not in done.stderr


def test_a_gate_does_not_pass_what_cannot_be_read(tmp_path: Path) -> None:
    for run in ("base", "head"):
        for batch in (1, 2):
            stored(tmp_path / run, batch)
    torn = next((tmp_path / "head").glob("attempts/*/b2/result.json"))
    torn.write_text("{")
    done = bench("compare", "base", "head", "--fail-on-regression", "5%")
    assert done.exit_code == 1
    assert f"regression: {torn.relative_to(tmp_path / 'head')} cannot be read: " in done.stderr
