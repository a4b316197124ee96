"""bench as it is installed: a wheel in an environment of its own, used in the folder of a project that has a `model/`.

Libraries come from the environment of the tests; bench and its bundled policy come from the wheel alone.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ROOT

from bench.records.outcome import Ok
from bench.store.run_folder import Store

PROJECT = {
    "model/__init__.py": "",
    "model/net.py": """
import torch


class Net(torch.nn.Sequential):
    def forward(self, batch):
        return {"loss": super().forward(batch["x"].to(self[0].weight.dtype)).float().square().mean()}
""",
    "matrices/mine.yaml": "workload: {name: 'mine:Mine'}\nmatrix: {backend: [ddp], batch: 2}\n",
    "records.py": "theirs = True\n",
    "runner/__init__.py": "theirs = True\n",
    "mine.py": """
from pydantic import BaseModel

import records, runner


class Mine:
    class Config(BaseModel, frozen=True, extra="forbid"):
        width: int = 8

    presets, units = {}, ("Linear",)
    auto_preset = classmethod(lambda cls, device, memory_bytes_per_rank: "")

    def __init__(self, config):
        self.width = config.width

    def build(self):
        import torch
        from model.net import Net

        assert records.theirs and runner.theirs
        return Net(torch.nn.Linear(self.width, self.width))

    def dataset(self, seed):
        import torch

        return [{"x": x} for x in torch.randn(256, self.width, generator=torch.Generator().manual_seed(seed))]
""",
}
STEPS = ("measure.warmup_steps=1", "measure.steps=2", "measure.phase_steps=1", "measure.launches=1")


class Installed:
    """A project's folder, and a Python environment with bench in it."""

    def __init__(self, folder: Path) -> None:
        self.project, environment = folder / "project", folder / "environment"
        for name, text in PROJECT.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)
        venv.create(environment, symlinks=True)
        self.bin = environment / "bin"
        (self.packages,) = environment.glob("lib/python*/site-packages")
        (self.packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # not what it installs as editable
        self.pip("install", "--no-index", "--no-deps", str(_wheel(folder)))

    def pip(self, *arguments: str) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "--python",
            str(self.bin / "python"),
        ]
        subprocess.run([*pip, *arguments], check=True, cwd=self.project, env=_without_checkout())

    def __call__(self, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
        done = subprocess.run(
            [self.bin / "bench", *arguments],
            cwd=cwd or self.project,
            env={**_without_checkout(), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _without_checkout() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _wheel(folder: Path) -> Path:
    """The wheel of the source distribution of this checkout."""
    source = folder / "source"
    source.mkdir()
    for name in ("bench", "model", "matrices"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, cwd=source, stdout=subprocess.DEVNULL)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(sdist)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Removes bench at the end and checks that the project is as it was."""
    installed = Installed(tmp_path_factory.mktemp("installed"))
    yield installed
    shutil.rmtree(installed.project / "reports", ignore_errors=True)
    installed.pip("uninstall", "--yes", "training-bench")
    assert [file.name for file in installed.packages.iterdir()] == ["libraries.pth"]
    left = {file for file in installed.project.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {file.relative_to(installed.project).as_posix(): file.read_text() for file in left} == PROJECT


def test_bench_is_the_only_name_installed(installed: Installed) -> None:
    names = {file.name for file in installed.packages.iterdir()} - {"libraries.pth"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"bench"}
    assert {"model/policy.py", "matrices/quickstart.yaml"} <= {
        str(file.relative_to(installed.packages / "bench")) for file in (installed.packages / "bench").rglob("*")
    }


def test_doctor_and_the_bundled_workload_beside_a_folder_model(installed: Installed) -> None:
    assert "missing" not in installed("doctor")
    installed("run", "quickstart", "--select", "backend=single", "--select", "batch=1", *STEPS)
    (result,) = Store(installed.project / "reports/quickstart").results()
    assert isinstance(result.outcome, Ok), result.outcome
    assert "model/policy.py" in (result.sources or {})


def test_a_workload_with_a_model_of_its_own(installed: Installed, tmp_path: Path) -> None:
    installed("run", "matrices/mine.yaml", *STEPS)
    (result,) = Store(installed.project / "reports/mine").results()
    assert isinstance(result.outcome, Ok), result.outcome
    assert {"mine.py", "model/net.py", "records.py", "runner/__init__.py"} <= set(result.sources or {})
    matrix = str(installed.project / "matrices/mine.yaml")
    assert "ddp" in installed("run", matrix, "--dry-run", cwd=tmp_path, PYTHONPATH=str(installed.project))
