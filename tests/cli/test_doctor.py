"""`bench doctor`."""

import pytest
from commands import bench

from bench.backends import BACKENDS

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
