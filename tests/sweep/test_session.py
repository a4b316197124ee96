"""What is checked before a sweep starts its ranks."""

from pathlib import Path

import pytest

import bench
from bench.errors import InputError
from bench.sweep.session import _check_not_hidden


def test_a_file_of_the_users_that_hides_bench_is_named(tmp_path: Path) -> None:
    _check_not_hidden(tmp_path)
    _check_not_hidden(Path(bench.__file__).parent.parent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bench.py").write_text("")
    with pytest.raises(InputError, match=r"mine/bench\.py: hides bench from the processes"):
        _check_not_hidden(tmp_path / "mine")
