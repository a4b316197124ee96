"""Where a workload is looked for: beside the matrix file, in the current folder, by module or by file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import InputError
from bench.workloads import load, locate, search

SOURCE = "def made(width: int = {width}):\n    return None, [1]\n"


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Modules and sys.path as before."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def width_of(name: str, folder: Path) -> int:
    found, where = locate(name, folder)
    search(where)
    width: int = load(found).Config.model_fields["width"].default
    return width


def test_a_file_is_found_below_the_folder_of_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/by_file.py").write_text(SOURCE.format(width=5))
    assert locate("./deep/by_file.py:made", tmp_path) == ("by_file:made", str(tmp_path / "deep"))
    assert width_of("deep/by_file.py:made", tmp_path) == 5


def test_a_module_beside_the_matrix_comes_before_one_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, width in (("beside", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "in_both.py").write_text(SOURCE.format(width=width))
    (tmp_path / "here/only_here.py").write_text(SOURCE.format(width=3))
    monkeypatch.chdir(tmp_path / "here")
    assert width_of("in_both:made", tmp_path / "beside") == 1
    assert width_of("only_here:made", tmp_path / "beside") == 3


def test_bundled_workloads_are_not_looked_for(tmp_path: Path) -> None:
    assert locate("pi07", tmp_path) == ("pi07", None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.py:made", "is not a file"),
        ("\0.py:made", "is not a file"),
        ("json.py:made", "another module"),
        ("bad-name.py:made", "no module can have this name"),
    ],
)
def test_a_file_that_cannot_be_imported_is_said(name: str, words: str, tmp_path: Path) -> None:
    for file in ("json.py", "bad-name.py"):
        (tmp_path / file).write_text(SOURCE.format(width=1))
    with pytest.raises(InputError, match=words):
        locate(name, tmp_path)


def test_a_file_whose_name_is_imported_already_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text(SOURCE.format(width=1))
    with pytest.raises(InputError, match=r"pytest.py cannot be imported: another module has this name"):
        locate("pytest.py:made", tmp_path)


def test_a_folder_that_is_looked_in_already_still_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of PYTHONPATH, behind the current folder."""
    for folder, width in (("beside", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "in_both_paths.py").write_text(SOURCE.format(width=width))
    monkeypatch.chdir(tmp_path / "here")
    sys.path[:] = [str(tmp_path / "here"), str(tmp_path / "beside"), *sys.path]
    assert width_of("./in_both_paths.py:made", tmp_path / "beside") == 1
    assert sys.path.count(str(tmp_path / "beside")) == 1
