"""The sections of a report, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples import CUDA_MACHINE, mixed, on_terminal, rank, rendered, result, vram, world

from bench.report.render import frame, terminal
from bench.report.summary import summarize
from bench.report.tables.export import records
from bench.report.tables.sections import Report

GOLDEN = Path(__file__).parents[1] / "golden"


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
    assert on_terminal([result(), result(backend="zero2")], width=300).count(note) == 3


def test_backward_step_is_never_printed() -> None:
    assert "backward_step" not in rendered(mixed()) + on_terminal(mixed())


def test_memory_is_called_what_it_is() -> None:
    on_cpu = rendered([result()])
    assert "peak RSS GiB" in on_cpu
    assert "reserved GiB" not in on_cpu
    on_gpu = rendered([result(world(rank(memory=vram(30, 40))), machine=CUDA_MACHINE)])
    assert re.search(r"peak allocated GiB \| peak reserved GiB", on_gpu)
    assert "peak RSS GiB" not in on_gpu
    assert "2 x Example GPU, 80.00 GiB each" in on_gpu


def test_no_results() -> None:
    assert "No results." in rendered([])
    assert terminal.render(Report(results=[]).brief) == []


def test_a_report_needs_no_torch() -> None:
    code = (
        "import sys, bench.cli.progress, bench.report.render.markdown, bench.report.render.terminal;"
        "sys.exit(str({'torch', 'pandas', 'accelerate'} & sys.modules.keys() or '') or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
