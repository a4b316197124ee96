"""A rank server and its forks, in this process."""

import os
from pathlib import Path
from typing import NoReturn

import pynvml
import pytest
from fake_nvml import Driver

from bench.records.rank_outcome import RankError
from bench.runner.server import Server
from bench.store import spool
from bench.store.spool import Request


class Counting(Server):
    """Its children end with the number of GPUs that NVML reports."""

    def _be_child(self, request: Request, folder: Path) -> NoReturn:
        try:
            os._exit(pynvml.nvmlDeviceGetCount())
        finally:
            os._exit(99)


def test_a_child_has_nvml_opened_anew(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.processes.end_orphans", lambda: None)
    pynvml.nvmlInit()
    Counting(tmp_path, 0)._attempt(Request(number=1, folder=str(tmp_path), port=1))
    [rank] = spool.read_ranks(tmp_path, 1)
    assert isinstance(rank, RankError)
    assert "ended by itself with exit code 2 " in rank.error
