"""GPUs without a driver."""

import pytest

from bench.machine.gpus import Gpu


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """The GPUs that the driver reports; empty until a test adds some."""
    reported: list[Gpu] = []
    monkeypatch.setattr("bench.machine.gpus._gpus", lambda: reported)
    return reported
