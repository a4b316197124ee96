"""GPUs that the real pynvml reports on a machine without one: fake_nvml.c in place of the driver's library."""

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

TWO = ("uuid=GPU-8f2a11 mib=81920 used=0 mig=0", "uuid=GPU-91bc22 mib=81920 used=0 mig=0")


@dataclass(frozen=True)
class Driver:
    """What NVML reports in this process and in those that it starts, by the environment."""

    monkeypatch: pytest.MonkeyPatch

    def reports(self, *gpus: str, driver: str = "580.65.06", cuda: int = 13000) -> None:
        """GPUs as fake_nvml.c describes them; ``cuda`` is the newest CUDA that the driver runs: 12040 for 12.4."""
        self.monkeypatch.setenv("FAKE_NVML_GPUS", ";".join(gpus))
        self.monkeypatch.setenv("FAKE_NVML_DRIVER", driver)
        self.monkeypatch.setenv("FAKE_NVML_CUDA", str(cuda))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("driver") / "libnvidia-ml.so.1"
    source = Path(__file__).with_suffix(".c")
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def driver(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver with two GPUs until a test has it report others."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))  # for processes that the test starts
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made_up = Driver(monkeypatch)
    made_up.reports(*TWO)
    yield made_up
    with contextlib.suppress(pynvml.NVMLError):  # until it is closed
        while True:
            pynvml.nvmlShutdown()
