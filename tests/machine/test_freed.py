"""Waiting for the memory of processes that ended, over a made-up driver and its own clock."""

from collections.abc import Iterator

import pytest
from fake_nvml import Driver

from bench.machine import freed


class Clock:
    """A clock that goes on when somebody sleeps. At ``at_s``, the driver reports other GPUs."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.now_s, self.at_s, self.then = driver, 0.0, float("inf"), ()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self.at_s:
            self.driver.reports(*self.then)


@pytest.fixture
def clock(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock(driver)
    monkeypatch.setattr(freed, "time", clock)
    return clock


def gpu(name: str, used: int, more: str = "others=0") -> str:
    """Its processes are those of another PID namespace: NVML lists none."""
    return f"uuid=GPU-{name} mib=81920 used={used} reserved=600 {more}"


def test_a_rank_that_takes_15_s_to_die_is_waited_for(driver: Driver, clock: Clock) -> None:
    driver.reports(gpu("a", 10), gpu("b", 7000))
    memory = freed.Memory({})
    assert memory.wait() == 0
    assert clock.now_s == 0
    driver.reports(gpu("a", 70_000), gpu("b", 7000))
    clock.at_s, clock.then = 15, (gpu("a", 60), gpu("b", 7000))
    assert memory.wait() == 0
    assert clock.now_s == pytest.approx(15, abs=0.2)


def test_what_stays_is_told_once_and_not_waited_for_again(driver: Driver, clock: Clock) -> None:
    """The server of MPS, which came with the first rank, keeps its context; or another program has started."""
    driver.reports(gpu("a", 0))
    memory = freed.Memory({})
    driver.reports(gpu("a", 1024, "others=1 mps=1"))
    assert memory.wait() == 2**30
    waited_s = clock.now_s
    assert waited_s == pytest.approx(30, abs=0.5)
    assert memory.wait() == 0
    assert clock.now_s == waited_s
    driver.reports(gpu("a", 0))  # it ended
    assert memory.wait() == 0
    driver.reports(gpu("a", 1024))
    assert memory.wait()


def test_a_rank_waits_for_its_own_gpu_alone(driver: Driver, clock: Clock) -> None:
    driver.reports(gpu("a", 0), gpu("b", 0))
    second, none = freed.Memory({}, 1), freed.Memory({"CUDA_VISIBLE_DEVICES": ""}, 0)
    driver.reports(gpu("a", 9000), gpu("b", 0))
    assert (second.wait(), none.wait(), clock.now_s) == (0, 0, 0)
    driver.reports("uuid=GPU-a mib=81920", "uuid=GPU-b lost=1")  # no longer told
    assert (second.wait(), clock.now_s) == (0, 0)
