"""What rank servers import before they fork. tests/runner/test_runner.py has what DeepSpeed compiles."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench.runner.preload import preload

LIKE_THE_AUTOTUNER = """
try:
    import mlflow
    has_mlflow = True
except ImportError:
    has_mlflow = False
"""


def test_preloads_take_mlflow_for_missing_and_a_workload_can_still_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "an_autotuner.py").write_text(LIKE_THE_AUTOTUNER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("bench.runner.preload._ALWAYS", ())
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    preload(["an_autotuner", "a_module_that_is_not_there"])
    assert not sys.modules.pop("an_autotuner").has_mlflow
    assert "mlflow" not in sys.modules
    imported = ModuleType("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", imported)
    preload(["an_autotuner"])
    assert sys.modules.pop("an_autotuner").has_mlflow
    assert sys.modules["mlflow"] is imported


def test_ranks_start_without_deepspeed() -> None:
    code = "import sys; sys.modules['deepspeed'] = None; import bench.runner.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
