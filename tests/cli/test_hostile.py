"""What names, errors, logs and stacks may hold: whatever it is, every command shows it as words."""

import re
import sys
from pathlib import Path

import pytest
from examples import MACHINE, MATRIX_YAML, ok, result
from rich.console import Console
from typer.testing import CliRunner, Result

from bench.cli.app import app
from bench.records.hang import Collective, Stuck
from bench.records.outcome import Failed, Hang, Oom, Reported, Skipped
from bench.store.run_folder import Store

WORDS = (
    "a|b\n## c `d` ``` <script>e</script> **f** [g](http://h) \x1b[31m\x1b]0;title\x07 _i_ \\| &lt; </script>"
    " \u202eright to left\u2066 \r\x08 \u2028 \x9b31m [red]j[/red] \x00"
)
LONG = WORDS * 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every word is hostile, with what each attempt leaves."""
    collective = Collective(
        group=WORDS, number=1, operation=WORDS, shapes=((1,),), dtypes=(WORDS,), finished=False, site=WORDS
    )
    stuck = tuple(
        Stuck(
            rank=rank, phase=WORDS, step=1, steps=2, place=WORDS, stacks=LONG, collectives=(collective,), log_tail=LONG
        )
        for rank in (0, 1)
    )
    failed = Failed(fault="missing_package", rank=0, phase=WORDS, reason=LONG, evidence=f"EVIDENCE {LONG}")
    machine = MACHINE.model_copy(
        update=dict.fromkeys(("cpu", "git_commit", "system", "driver"), WORDS)
        | {name: {WORDS: WORDS} for name in ("libraries", "threads")}
    )
    axes = {WORDS: WORDS, "n": 1}
    records = [
        result(axes=axes, machine=machine).model_copy(update={"retried": LONG}),
        result(Hang(reason=LONG, stuck=stuck), axes=axes, batch=4, machine=machine),
        result(failed, axes=axes, batch=8, machine=machine).model_copy(update={"retried": LONG}),
        result(Oom(rank=0, phase=WORDS, reason=LONG, source=WORDS), axes=axes, batch=16, machine=machine),
        result(Skipped(reason=LONG), axes=axes, batch=32, machine=machine),
        result(Reported(source=WORDS, samples_per_s_global=1.0), axes=axes, batch=64, machine=machine),
        result(ok(backend="fsdp"), backend="fsdp", axes=axes, machine=machine),
        result(ok(backend="zero2"), backend="zero2", axes={WORDS: "other", "n": 2}, machine=machine),
    ]
    store = Store(tmp_path_factory.mktemp("hostile") / "run")
    with store.open(machine, [record.attempt.cell for record in records], MATRIX_YAML):
        for record in records:
            left = store.begin(record.attempt)
            (left / "command.sh").write_text(f"#!/bin/sh\n{WORDS}\n")
            (left / "rank0.log").write_bytes(f"{LONG}\n".encode() * 3)
            (left / "x\x1b[31m\u202e.log").write_text(WORDS)
            store.finish(record)
    return store.root


@pytest.fixture(params=["a pipe", "a terminal"])
def shown_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "a terminal":
        for name in ("printing", "report"):
            module = sys.modules[f"bench.cli.{name}"]
            monkeypatch.setattr(
                module, "console", lambda: Console(force_terminal=True, color_system=None, width=100, height=200)
            )
    return str(request.param)


def bench(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    for text in (done.stdout, done.stderr):
        obeyed = {char for char in text if not char.isprintable() and char != "\n"}
        assert not obeyed, ascii(obeyed)
    return done


def test_reports_and_comparisons_are_words(run: Path, shown_on: str) -> None:
    shown = bench("report", run)
    assert shown.exit_code == 0
    assert "missing package" in shown.stdout
    assert "second try" in shown.stdout
    if shown_on == "a terminal":
        assert max(map(len, shown.stdout.splitlines())) <= 100
        assert "[red]j[/red]" in " ".join(shown.stdout.split())
    else:
        assert "<script" not in shown.stdout
        for line in shown.stdout.splitlines():
            assert len(line) < 1500
            assert not line.startswith("## c ")
    assert bench("compare", run, run).exit_code == 0


def test_every_format_is_words(run: Path, tmp_path: Path) -> None:
    for kind in ("md", "html", "csv", "json"):
        full = ["--full"] if kind == "md" else []
        assert bench("report", run, *full, "--format", kind, "--output", tmp_path / f"a.{kind}").exit_code == 0
        text = (tmp_path / f"a.{kind}").read_text()
        assert all(char.isprintable() or char == "\n" for char in text)
        assert len(text) < 200_000
    for drawing in (tmp_path / "plots").iterdir():
        assert all(char.isprintable() or char == "\n" for char in drawing.read_text())
    assert bench("report", run, "--format", "parquet", "--output", tmp_path / "a.parquet").exit_code == 0


def test_a_cell_is_shown_with_its_stacks_evidence_and_logs_as_words(run: Path, shown_on: str) -> None:
    text = bench("show", "backend=ddp", run).stdout
    for title in (
        "Why batch 4 hung",
        "Rank 1 in the hang of batch 4",
        "Why batch 8 failed",
        "Why batch 16 ran out of memory",
        "Why batch 32 was skipped",
        "End of rank0.log, batch 8: failed",
    ):
        assert re.search(rf"^(## )?{title}$", text, re.MULTILINE), title
    assert "EVIDENCE a|b" in text
    if shown_on == "a pipe":  # markdown: what is verbatim is indented, and nothing in it begins a heading
        assert [line for line in text.splitlines() if line.startswith("## c ")] == []
        assert "\n    EVIDENCE a|b\n    ## c `d` ```" in text


def test_a_short_reason_is_told_once(tmp_path: Path) -> None:
    record = result(Failed(rank=0, phase="start", reason="ValueError: x"))
    store = Store(tmp_path / "run")
    with store.open(MACHINE, [record.attempt.cell], MATRIX_YAML):
        store.finish(record)
    text = bench("show", "ddp", store.root).stdout
    assert text.count("ValueError: x") == 1
    assert "## Why" not in text


@pytest.mark.parametrize("words", ["backend=x", "d", WORDS, f"{WORDS}=1"])
def test_a_cell_that_is_not_there_is_told_in_words(run: Path, words: str) -> None:
    done = bench("show", words.replace("\x00", ""), run)
    assert done.exit_code in (0, 2)
    assert len(done.stderr.splitlines()) <= 3
