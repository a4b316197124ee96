"""`bench doctor`."""

from types import SimpleNamespace

import pytest
from commands import bench
from fake_nvml import TWO, Driver

from bench.backends import BACKENDS
from bench.launch.torch_side import Trial

TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_doctor_names_every_backend_and_library() -> None:
    done = bench("doctor")
    assert done.exit_code == 0, done.output
    subjects = [line.split()[1] for line in done.output.splitlines()]
    assert set(BACKENDS) <= set(subjects)
    assert {"device", "ranks", "torch", "accelerate", "deepspeed", "transformers"} <= set(subjects)


def test_the_doctor_ends_with_1_when_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.machine.hardware.LIBRARIES", ("torch", "transformers", "accelerate"))
    done = bench("doctor")
    assert done.exit_code == 1
    assert [line for line in done.output.splitlines() if line.startswith("missing")] == [
        "missing  deepspeed       not installed: pip install deepspeed"
    ]


def test_the_doctor_takes_what_compiles_for_missing_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("bench.cli.doctor.shutil.which", lambda tool: None if tool == "c++" else tool)
    done = bench("doctor")
    assert done.exit_code == 1
    missing = [line.split()[1] for line in done.output.splitlines() if line.startswith("missing")]
    assert missing == ["compiler", "zero1", "zero2", "zero3"]


def driver_line() -> str:
    done = bench("doctor")
    [line] = [line for line in done.output.splitlines() if line[9:].startswith("driver ")]
    assert done.exit_code == int(line.startswith("missing"))
    return line


def test_the_doctor_takes_a_driver_for_missing_that_torch_cannot_use(driver: Driver) -> None:
    """What the child that computes says is what the doctor says: torch is built without CUDA, or finds no driver."""
    driver.reports(TWO[0], driver="550.54.14", cuda=12040)
    line = driver_line()
    assert line.startswith("missing  driver          550.54.14, runs CUDA up to 12.4")
    says = ("is built without CUDA", "driver on your system is too old", "Found no NVIDIA driver on your system")
    assert any(words in line for words in says), line


@pytest.mark.parametrize(
    ("tried", "says"),
    [
        (
            Trial("13.0", TOO_OLD),
            "runs CUDA up to 12.4; torch is built for CUDA 13.0: update the driver, or install torch for CUDA 12, see"
            f" `bench guide troubleshooting`. {TOO_OLD}",
        ),
        (
            Trial("12.6", "DistBackendError: NCCL error"),
            "runs CUDA up to 12.4; torch is built for CUDA 12.6. DistBackendError: NCCL error",
        ),
        (
            Trial("12.6", None),
            "torch is built for CUDA 12.6; each GPU computed a product in bf16, and all summed it",
        ),
    ],
)
def test_the_doctor_says_what_the_trial_of_the_devices_showed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tried: Trial, says: str
) -> None:
    driver.reports(*TWO, driver="550.54.14", cuda=12040)
    monkeypatch.setattr("bench.cli.doctor.trial", lambda *_: tried)
    line = driver_line()
    assert line.endswith(says)
    assert line.startswith("ok" if tried.error is None else "missing")


@pytest.mark.parametrize(("gib", "ok"), [(1, False), (2, True)])
def test_the_doctor_finds_too_little_shared_memory_for_loader_workers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, gib: int, ok: bool
) -> None:
    driver.reports(*TWO)
    monkeypatch.setattr("bench.cli.doctor.trial", lambda *_: Trial("13.0", None))
    monkeypatch.setattr("bench.cli.doctor.shutil.disk_usage", lambda _: SimpleNamespace(total=gib * 2**30))
    [line] = [line for line in bench("doctor").output.splitlines() if line[9:].startswith("shared memory")]
    assert line.startswith("ok" if ok else "missing")
    assert ("--shm-size" in line) != ok
