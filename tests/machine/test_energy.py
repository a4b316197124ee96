"""Energy counters: of GPUs over a made-up driver, of processors in a made-up /sys."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_nvml import Driver

from bench.machine import energy

RANGE_UJ = 262_143_328_850


@pytest.fixture
def zone(tmp_path: Path) -> Callable[..., None]:
    """Writes a zone of the kernel's powercap driver."""

    def write(name: str, of: str, energy_uj: float, range_uj: int = RANGE_UJ) -> None:
        folder = tmp_path / "sys/class/powercap" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in (("name", of), ("energy_uj", int(energy_uj)), ("max_energy_range_uj", range_uj)):
            (folder / file).write_text(f"{value}\n")

    return write


def test_the_processors_energy_is_that_of_packages_and_memory_past_the_end_of_a_counter(
    zone: Callable[..., None], tmp_path: Path
) -> None:
    zone("intel-rapl:0", "package-0", RANGE_UJ - 2e6)
    zone("intel-rapl:0:0", "core", 0)
    zone("intel-rapl:0:1", "dram", 1e6)
    zone("intel-rapl:1", "package-1", 5e6)
    zone("intel-rapl-mmio:0", "package-0", 0)
    meter = energy.of_processors(2, tmp_path)
    meter.start()
    zone("intel-rapl:0", "package-0", 4e6)
    zone("intel-rapl:0:0", "core", 9e6)
    zone("intel-rapl:0:1", "dram", 2e6)
    zone("intel-rapl:1", "package-1", 8e6)
    zone("intel-rapl-mmio:0", "package-0", 9e6)
    assert meter.stop() == pytest.approx((6 + 1 + 3) / 2)


def test_what_cannot_be_read_or_may_have_wrapped_twice_is_unknown(
    zone: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = energy.of_processors(1, tmp_path)
    meter.start()
    assert meter.stop() is None
    zone("intel-rapl:0", "package-0", 0)
    meter.start()
    now_s = time.monotonic()
    monkeypatch.setattr("bench.machine.energy.time.monotonic", lambda: now_s + RANGE_UJ / 1e6 / energy.MOST_W)
    zone("intel-rapl:0", "package-0", 1e6)
    assert meter.stop() is None
    monkeypatch.undo()
    meter.start()
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert meter.stop() is None


def test_memory_takes_less_than_a_package_and_its_counter_lasts_longer(
    zone: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    range_uj = 65_712_999_613
    zone("intel-rapl:0:0", "dram", 0, range_uj)
    meter = energy.of_processors(1, tmp_path)
    meter.start()
    zone("intel-rapl:0:0", "dram", 1e6, range_uj)
    now_s = time.monotonic()
    for lasted_s, joules in ((range_uj / 1e6 / energy.MOST_W, 1), (range_uj / 1e6 / energy.MOST_DRAM_W, None)):
        monkeypatch.setattr("bench.machine.energy.time.monotonic", lambda lasted_s=lasted_s: now_s + lasted_s)
        assert meter.stop() == joules


def test_a_gpu_s_energy_is_that_of_the_rank_s_own(driver: Driver) -> None:
    driver.reports("uuid=GPU-a mib=1 energy_mj=0", "uuid=GPU-b mib=1 energy_mj=7000")
    meter = energy.of_gpu(os.environ, 1)
    meter.start()
    driver.reports("uuid=GPU-a mib=1 energy_mj=999000", "uuid=GPU-b mib=1 energy_mj=97500")
    assert meter.stop() == pytest.approx(90.5)
    driver.reports("uuid=GPU-a mib=1 energy_mj=0", "uuid=GPU-b mib=1 energy_mj=0")  # its driver was loaded again
    assert meter.stop() is None
    driver.reports("uuid=GPU-a mib=1", "uuid=GPU-b mib=1")
    assert meter.stop() is None
    missing = energy.of_gpu(os.environ, 2)
    missing.start()
    assert missing.stop() is None
