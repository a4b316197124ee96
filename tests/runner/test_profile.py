"""The marks of a profiled step."""

import contextlib
from collections.abc import Iterator

import pytest

from bench.records.phases import PHASE_NAMES
from bench.runner import profile


def test_each_micro_batch_marks_its_own_loading_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def marked(name: str) -> Iterator[None]:
        told.append(name.removeprefix("bench:phase:"))
        yield
        told.append("end")

    monkeypatch.setattr(profile, "record_function", marked)
    of_micro_batch, rest = PHASE_NAMES[:3], PHASE_NAMES[3:]
    begun = [*of_micro_batch, *of_micro_batch, *rest]  # as `bench.runner.steps.step` calls it with accumulate=2
    marks = profile.PhaseMarks()
    for phase in begun:
        marks(phase)
    marks.end()
    assert told == [word for phase in begun for word in (phase, "end")]
