"""The shim of a GPU, with torch and accelerate in its place patched: what it asks of them, in which order."""

import subprocess

import pytest
from accelerate import state

from bench.runner.device import Cuda


class Accelerator:
    """Asks what accelerate's own asks of a GPU when it joins the others."""

    def __init__(self, kwargs_handlers: list[object]) -> None:
        assert state.check_cuda_p2p_ib_support()

    def wait_for_everyone(self) -> None: ...


def test_a_rank_does_not_run_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*command: object, **_: object) -> str:
        pytest.fail(f"ran {command}")

    monkeypatch.setattr(subprocess, "check_output", ran)
    monkeypatch.setattr(state, "check_cuda_p2p_ib_support", state.check_cuda_p2p_ib_support)  # restored afterwards
    monkeypatch.setattr("bench.runner.device.Accelerator", Accelerator)
    Cuda().open("ddp", find_unused_parameters=False)
