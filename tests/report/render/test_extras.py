"""Libraries that only some exports need."""

from pathlib import Path

import pytest

from bench.errors import InputError
from bench.report.render.extras import needed


def test_an_installed_library_is_imported() -> None:
    assert needed("json", extra="any").loads("1") == 1


def test_a_missing_one_is_named_with_its_extra() -> None:
    with pytest.raises(InputError, match="needs the library no_such_library, which is not installed") as error:
        needed("no_such_library", extra="plots")
    assert error.value.fix == "pip install 'training-bench[plots]'"


def test_a_folder_of_that_name_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves a folder `wandb` where it was used."""
    (tmp_path / "left_by_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="needs the library left_by_library"):
        needed("left_by_library", extra="wandb")
