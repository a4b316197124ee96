"""The report of `make gpu`, which needs no GPU to be written, and a part of its rehearsal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import PARTS, Line, figures, lines_of, merged, page, stem, without_paths
from examples import CUDA_MACHINE, MACHINE

GPU = Path(__file__).parent.parent / "gpu"
LINES = [
    Line("backends", "Phases sum to the total.", "passed", "largest: 0.4 %; a|b: c d", 12.4, "1234abcd"),
    Line("rest", "A hang is named.", "skipped", "why: needs 2 CUDA devices", 0.0, "1234abcd"),
]


def test_a_check_is_a_line_with_its_figures() -> None:
    text = page(CUDA_MACHINE, LINES)
    assert text.startswith("# Checks on 2 × Example GPU\n")
    assert "1 passed, 1 skipped. Driver 1.0" in text
    assert "Seconds by part: backends 12.\n" in text
    assert "| backends | Phases sum to the total. | passed | largest: 0.4 %; a\\|b: c d | 12 | 1234abcd |\n" in text


def test_a_check_without_figures_has_an_empty_cell() -> None:
    assert "| oom | It is so. | passed | | 1 | 1 |" in page(
        CUDA_MACHINE, [Line("oom", "It is so.", "passed", "", 1, "1")]
    )


def test_figures_are_one_line_without_folders() -> None:
    assert figures({"a": "1", "why": "two\nlines"}) == "a: 1; why: two lines"
    assert without_paths("File /home/me/x.py, a/b of 3/4") == "File …/x.py, a/b of 3/4"


def test_a_report_can_be_read_again_and_one_of_another_form_has_no_lines() -> None:
    assert lines_of(page(CUDA_MACHINE, LINES)) == [line._replace(took_s=round(line.took_s)) for line in LINES]
    assert lines_of("| check | outcome |\n| --- | --- |\n| It is so. | passed |\n") == []


def test_a_part_that_runs_again_replaces_its_own_lines_and_keeps_the_order_of_parts() -> None:
    again = LINES[0]._replace(outcome="failed", commit="5678")
    assert merged(LINES, again) == [again, LINES[1]]
    first = Line("doctor", "Nothing is missing.", "passed", "", 1.0, "5678")
    assert merged(LINES, first) == [first, *LINES]


def test_every_part_has_its_file_and_every_file_is_a_part() -> None:
    assert {file.stem.removeprefix("test_") for file in GPU.glob("test_*.py")} == set(PARTS)


def test_reports_are_named_by_their_devices() -> None:
    assert stem(CUDA_MACHINE) == "gpu-2-example-gpu"
    assert stem(MACHINE) == "rehearsal-cpu"


@pytest.mark.timeout(900)
def test_a_rehearsal_runs_checks_on_the_cpu_and_writes_each_line(tmp_path: Path) -> None:
    chosen = [str(GPU / "test_doctor.py"), f"{GPU / 'test_oom.py'}::test_a_library_on_a_full_device"]
    environment = {**os.environ, "BENCH_GPU_REHEARSAL": "cpu", "BENCH_GPU_REPORTS": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, cwd=GPU.parent.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    lines = lines_of((tmp_path / "rehearsal-cpu.md").read_text())
    assert [line.part for line in lines] == ["doctor"] * 3 + ["oom"] * 5
    assert {line.outcome for line in lines} == {"passed", "skipped"}
    assert all(line.figures for line in lines)
    assert (tmp_path / "rehearsal-cpu/oom_texts.json").stat().st_size
