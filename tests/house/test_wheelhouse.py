"""What `make wheelhouse` collects, for a Python that is not this one. The real pip is called by `make wheelhouse`."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import wheelhouse
from packaging.requirements import Requirement

TARGET = ("3.12", "x86_64")
NEEDS = {
    "torch": ["huge"],
    "old": ["for-old; python_version < '3.12'", "for-new; python_version >= '3.12'"],
    "for-new": ["on-arm; platform_machine == 'aarch64'", "has-extra[fast]"],
    "has-extra": ["quick; extra == 'fast'", "other; extra == 'slow'"],
    "deepspeed": ["torch", "Has_Extra"],
    "quick": [],
}
"""Requirements by package."""


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names in the order in which they are fetched, from an index that has the packages of NEEDS."""
    names: list[str] = []

    def fetch(wanted: Sequence[str], to: Path, target: tuple[str, str]) -> None:
        assert target == TARGET
        for name in wanted:
            write(to, name, NEEDS[name])
        names.extend(wanted)

    def pip(command: str, *arguments: str, **_: str) -> None:
        write(Path(arguments[1]), "training-bench", [])

    monkeypatch.setattr(
        wheelhouse, "roots", lambda: [Requirement("torch"), Requirement("old"), Requirement("deepspeed")]
    )
    monkeypatch.setattr(wheelhouse, "fetch", fetch)
    monkeypatch.setattr(wheelhouse, "pip", pip)
    return names


def write(to: Path, name: str, needs: Sequence[str]) -> Path:
    file = to / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            f"{name.replace('-', '_')}-1.0.dist-info/METADATA",
            "\n".join(["Metadata-Version: 2.1", f"Name: {name}", *(f"Requires-Dist: {need}" for need in needs), ""]),
        )
    return file


def test_it_has_what_the_target_needs_and_not_what_it_has(fetched: list[str], tmp_path: Path) -> None:
    wheels = wheelhouse.collect(tmp_path, TARGET, ["Torch"])
    assert sorted(fetched) == ["deepspeed", "for-new", "has-extra", "old", "quick"]
    assert {wheel.name.partition("-")[0] for wheel in wheels} == {
        "deepspeed", "for_new", "has_extra", "old", "quick", "training_bench",
    }  # fmt: skip


def test_wheels_that_are_no_longer_needed_go(fetched: list[str], tmp_path: Path) -> None:
    stale = write(tmp_path, "stale", [])
    wheelhouse.collect(tmp_path, TARGET, ["torch"])
    assert fetched
    assert not stale.exists()


def test_bench_its_checks_and_its_build_are_wanted_at_the_tested_versions() -> None:
    names = {one.name for one in wheelhouse.roots()}
    assert {"pydantic", "deepspeed", "pytest", "setuptools"} <= names
    assert {name.replace(".", "-") for name in names} <= set(wheelhouse.pins())
