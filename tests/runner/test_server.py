"""A rank server and its forks, in this process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NoReturn

import psutil
import pynvml
import pytest
import torch
from fake_nvml import Driver

from bench.records.rank_outcome import RankKilled
from bench.runner import server as rank_server
from bench.runner.server import Server, _imports, _in_a_child, _unforkable
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
    assert "ended by itself with exit code 2 " in rank.error


class Dying(Server):
    """Its children note the memory in use at their start, then take some, which the driver keeps after their end."""

    def _be_child(self, request: Request, folder: Path) -> NoReturn:
        try:
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            with (self.folder / "capacity").open("a") as file:
                file.write(f"{pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used >> 20} MiB in use\n")
            told = Path(os.environ["FAKE_NVML_FILE"])
            idle = told.read_text()
            told.write_text(idle.replace("used=10", "used=70000"))
            give_back = "import sys, time; time.sleep(1.5); open(sys.argv[1], 'w').write(sys.argv[2])"
            subprocess.Popen([sys.executable, "-c", give_back, told, idle], start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(99)


def test_the_next_attempt_starts_once_the_gpu_has_the_memory_of_a_slowly_dying_rank_back(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.processes.end_orphans", lambda: None)
    told = tmp_path / "driver"
    told.write_text("uuid=GPU-a mib=81920 used=10 reserved=600 others=0")
    monkeypatch.setenv("FAKE_NVML_FILE", str(told))
    server = Dying(tmp_path, 0)
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        server._attempt(Request(number=number, folder=str(folder), port=1))
        [rank] = spool.read_ranks(folder, 1)
        assert isinstance(rank, RankKilled)
        assert server._held_bytes == 0
    assert (tmp_path / "capacity").read_text().splitlines() == ["10 MiB in use"] * 2


def test_a_server_whose_child_torch_would_refuse_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slice of a GPU, torch asks CUDA and not NVML whether there is a device, as soon as accelerate asks it."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # an earlier test may have had torch ask CUDA
    assert _unforkable(started_threads=False) is None
    server = os.getpid()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != server)
    assert "as it does where they are slices (MIG)" in str(_unforkable(started_threads=False))


def test_a_server_in_which_another_library_uses_cuda_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr("bench.runner.server.gpus.initialized", lambda: True)
    assert "other than torch initializes CUDA" in str(_unforkable(started_threads=False))


def test_a_thread_of_python_is_a_reason_not_to_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plain_module.py").write_text("import threading\nthreading.Thread(target=int).start()\n")
    (tmp_path / "threading_module.py").write_text(
        "import threading\nend = threading.Event()\nthreading.Thread(target=end.wait, daemon=True).start()\n"
    )
    assert not _imports(["plain_module", "no_such_module"]), "its thread has ended"
    started = _imports(["threading_module"])
    assert started
    assert "starts a thread when it is imported" in str(_unforkable(started_threads=started))


def spin() -> None:
    for _ in count():
        pass


@pytest.mark.parametrize("hangs", [threading.Event().wait, spin])
def test_a_child_that_hangs_is_found_and_ended(hangs: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_server, "HUNG_BUSY_S", 0.3)
    before = psutil.Process().children()
    assert not _in_a_child(hangs)
    assert psutil.Process().children() == before
    assert _in_a_child(rank_server._computes)
