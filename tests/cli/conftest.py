"""What tests of commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, and nothing in the environment that a command refuses."""
    monkeypatch.chdir(tmp_path)
    for name in ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "OMP_NUM_THREADS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
