"""`bench init`: files that README.md shows, which load as they are, and that never replace anything."""

import sys
from pathlib import Path

import pytest
from documents import Document, File
from typer.testing import CliRunner

from bench.cli.app import app

README = Path(__file__).parents[2] / "README.md"
MODEL_LINES = 15


def test_it_writes_what_the_readme_shows(tmp_path: Path) -> None:
    folder = tmp_path / "new/project"
    done = CliRunner().invoke(app, ["init", str(folder)])
    assert done.exit_code == 0, done.output
    written = {file.name: file.read_text() for file in folder.iterdir()}
    shown = {step.name: step.content for step in Document.read(README).steps() if isinstance(step, File)}
    assert written == {name: shown[name] for name in ("my_model.py", "my_sweep.yaml")}
    assert len(written["my_model.py"].splitlines()) <= MODEL_LINES
    assert done.output == (
        f"wrote {folder}/my_model.py and {folder}/my_sweep.yaml; `bench run {folder}/my_sweep.yaml` measures them\n"
    )


def test_its_matrix_loads_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    CliRunner().invoke(app, ["init", str(tmp_path / "project")])
    done = CliRunner().invoke(app, ["run", str(tmp_path / "project/my_sweep.yaml"), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.output.count("batch per rank 8") == 8
    assert "units as found in the model" in done.output


@pytest.mark.parametrize("taken", ["my_model.py", "my_sweep.yaml"])
def test_it_overwrites_nothing(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"bench: {tmp_path / taken}: exists, and bench init overwrites nothing\n")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(taken, "mine")]


def test_a_matrix_for_a_script_loads_and_is_written_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("\ufeffimport argparse\nargparse.ArgumentParser().add_argument('--batch_size', type=int)\n")
    done = CliRunner().invoke(app, ["init", "--script", str(script)])
    assert done.exit_code == 0, done.output
    assert "train.yaml --axis batch=8,16` measures two batches" in done.output
    matrix = str(tmp_path / "train.yaml")
    done = CliRunner().invoke(app, ["run", matrix, "--dry-run", "--axis", "batch=2,4"])
    assert done.exit_code == 0, done.output
    assert "train.py --batch_size" in done.output
    again = CliRunner().invoke(app, ["init", "--script", str(script)])
    assert again.exit_code == 2
    assert "exists, and bench init overwrites nothing" in again.output
    missing = CliRunner().invoke(app, ["init", "--script", str(tmp_path / "none.py")])
    assert missing.exit_code == 2
    assert "cannot be read" in missing.output
