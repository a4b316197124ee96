"""The words of `bench explain`, and what it refuses."""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli.app import app
from bench.cli.explain import Named, _is_whole, named
from bench.errors import InputError

TRACES = Path(__file__).parents[1] / "explain"


def test_a_setting_that_stands_twice_has_one_value_for_each_cell(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    assert named(["backend=ddp", "batch=4", str(run)]) == [Named("backend=ddp batch=4", run)]
    assert named(["backend=ddp", "backend=fsdp2", "batch=4", str(run)]) == [
        Named("backend=ddp batch=4", run),
        Named("backend=fsdp2 batch=4", run),
    ]
    assert named(["ddp-1", "fsdp2-2", str(run)]) == [Named("ddp-1", run), Named("fsdp2-2", run)]
    assert named(["ddp-1", "batch=1", "batch=2", str(run)]) == [
        Named("ddp-1 batch=1", run),
        Named("ddp-1 batch=2", run),
    ]
    assert named(["backend=ddp", str(run), str(other)]) == [Named("backend=ddp", run), Named("backend=ddp", other)]


@pytest.mark.parametrize(
    ("words", "message"), [([], "nothing to explain"), (["a", "b", "c"], "3 cells are named: allowed")]
)
def test_no_cell_and_three_cells_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message.partition(":")[0]):
        named(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to explain"),
        (["--trace", "nowhere"], "holds no trace"),
        (["backend=ddp", "--trace"], "requires an argument"),
        (["backend=ddp", "--trace", str(TRACES)], "--trace: explains files, and 'backend=ddp' names a cell"),
        (["backend=ddp", "backend=fsdp2", "reports", "--try"], "tries settings of one cell"),
        (["backend=ddp", "reports"], "holds no run"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_traces_of_others_are_explained_with_ranks_missing(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    file = TRACES / "a100_8ranks_rank3_training.json.gz"
    done = CliRunner().invoke(app, ["explain", "--trace", str(file), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "exposed all-to-all in forward" in done.output
    assert "not all ranks' traces tell" in done.output
    assert "rank 3" in page.read_text()
    again = CliRunner().invoke(app, ["explain", "--trace", str(file), "--html", str(page)])
    assert again.exit_code == 0, again.output


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_text("{}")
    done = CliRunner().invoke(app, ["explain", "--trace", str(tmp_path), "--html", str(file)])
    assert (done.exit_code, file.read_text()) == (2, "{}")
    assert "exists, and is no page" in done.output


def test_a_trace_without_marks_of_steps_says_that_it_counts_as_one(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * number, "dur": 5}
        for number in range(4)
    ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    done = CliRunner().invoke(app, ["explain", "--trace", str(tmp_path), "--format", "md"])
    assert done.exit_code == 0, done.output
    assert "The traces of ranks 0 mark no steps (ProfilerStep): all of each counts as one step." in done.output


def test_a_damaged_profile_is_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "rank0.trace.json.gz"
    file.write_bytes(gzip.compress(bytes(range(256)) * 500))
    assert _is_whole(file)
    file.write_bytes(file.read_bytes()[:200])
    assert not _is_whole(file)
