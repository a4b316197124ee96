"""The throughput window over a simulated device: a thread that works off a bounded queue, with scripted times.

Host and device have clocks of their own, which only the script moves, so that every figure is exact.
"""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.records.phases import Stage
from bench.runner import steps
from bench.runner.device import Cpu
from bench.runner.forward import METRICS
from bench.runner.steps import AHEAD, Window, throughput_window

LAUNCHES = 1000
"""That the queue holds, as a CUDA stream's does: the host then waits until one has run."""


@dataclass
class Launch:
    """One kernel, or a mark, which takes no time."""

    issued_s: float
    device_s: float
    ran: threading.Event = field(default_factory=threading.Event)
    end_s: float = 0.0

    def wait(self) -> float:
        assert self.ran.wait(60), "the device's thread is gone"
        return self.end_s


class Device(Cpu):
    """A device whose queue a thread works off."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.launches: list[Launch] = []
        self._queue: queue.Queue[Launch | None] = queue.Queue(LAUNCHES)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        now_s = 0.0
        while (launch := self._queue.get()) is not None:
            now_s = launch.end_s = max(now_s, launch.issued_s) + launch.device_s
            launch.ran.set()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(60)

    def launch(self, device_s: float) -> Launch:
        if len(self.launches) >= LAUNCHES:
            self.host_s = max(self.host_s, self.launches[-LAUNCHES].wait())
        made = Launch(self.host_s, device_s)
        self.launches.append(made)
        self._queue.put(made)
        return made

    def mark(self) -> Any:
        return self.launch(0.0)

    def reach(self, mark: Any) -> None:
        self.host_s = max(self.host_s, mark.wait())

    def synchronize(self) -> None:
        self.reach(self.launches[-1])

    def between_s(self, first: Any, last: Any) -> float:
        return float(last.wait() - first.wait())


@dataclass
class Ran:
    window: Window
    wall_s: float
    """Of the device, from the first launch to the last."""
    ahead: list[int]
    """At the start of each step: how many steps before it the device has not finished."""


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


def run(
    device: Device, monkeypatch: pytest.MonkeyPatch, *, launches: int, host_s: float, device_s: float, number: int = 8
) -> Ran:
    """A window of steps that each make so many launches, in all of so many seconds of host and device."""
    ends: list[Launch] = []
    ahead: list[int] = []

    def step(*_: object) -> torch.Tensor:
        ahead.append(sum(end.wait() > device.host_s for end in ends))
        for _ in range(launches):
            device.host_s += host_s / launches
            last = device.launch(device_s / launches)
        ends.append(last)
        return torch.zeros(len(METRICS))

    monkeypatch.setattr(steps, "step", step)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: device.host_s))
    job: Any = SimpleNamespace(overflows=lambda: lambda: False, accelerator=SimpleNamespace(device=torch.device("cpu")))
    window = throughput_window(job, iter(()), number, device, lambda *_: None, Stage.MEASURE)
    return Ran(window, device.launches[-1].end_s, ahead)


CASES = {
    "the device is slower": {"launches": 100, "host_s": 0.001, "device_s": 0.1},
    "the host is slower": {"launches": 100, "host_s": 0.1, "device_s": 0.001},
    "more launches than the queue holds": {"launches": 1500, "host_s": 0.001, "device_s": 0.1},
    "one launch": {"launches": 1, "host_s": 0.001, "device_s": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_steps_sum_to_the_wall_time(device: Device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    ran = run(device, monkeypatch, **CASES[case])  # type: ignore[arg-type]
    assert sum(ran.window.times_s) == pytest.approx(ran.wall_s)
    slower_s = max(CASES[case]["host_s"], CASES[case]["device_s"])
    assert ran.window.times_s[2:] == pytest.approx([slower_s] * 6, rel=0.02)


@pytest.mark.parametrize("case", CASES)
def test_at_most_two_steps_are_queued(device: Device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """That which the host is about to queue is one of them."""
    ran = run(device, monkeypatch, **CASES[case])  # type: ignore[arg-type]
    assert max(ran.ahead) == AHEAD - 1


def test_host_time_is_that_of_the_host_until_the_queue_is_full(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(device, monkeypatch, launches=400, host_s=0.001, device_s=0.1)
    assert ran.window.host_times_s == pytest.approx([0.001] * 8)


def test_host_time_is_that_of_the_device_while_the_queue_is_full(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It then says nothing of the host: it was busy, or blocked."""
    ran = run(device, monkeypatch, launches=3000, host_s=0.001, device_s=0.1)
    assert min(ran.window.host_times_s[1:]) > 0.05
