"""How a process of the runner starts."""

import os
import runpy
import sys

import pytest
from fake_nvml import Driver


def test_a_rank_sees_its_gpus_by_index(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's adapter for CUDA asks NVML, and takes each entry of the variable for a number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-91bc22,GPU-8f2a11")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setattr("bench.processes.die_with_parent", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["bench.runner"])
    with pytest.raises(SystemExit):
        runpy.run_module("bench.runner", run_name="__main__")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
