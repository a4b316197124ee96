"""The live display, on a terminal and without one, under a clock that the test moves."""

import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from examples import CUDA_MACHINE, ok, rank, result, vram, world
from rich.console import Console

from bench.cli.progress import PLAIN_INTERVAL_S, Progress
from bench.records.outcome import Failed, Hang, Oom, Skipped
from bench.records.verdict import Stopped


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begin(progress: Progress, **changes: Any) -> None:
    fields: dict[str, Any] = {"cells": 2, "attempts": 4, "finished": 0, "folder": "reports/example", "notes": []}
    progress.begin(**fields | changes)


def plain(run: Callable[[Progress], None], clock: Clock, **console: Any) -> str:
    file = io.StringIO()
    with Progress(Console(file=file, width=60, **console), clock) as progress:
        run(progress)
    return file.getvalue()


def screen(run: Callable[[Progress], None], clock: Clock) -> str:
    """Everything that a terminal was sent, without its styles."""
    raw = plain(run, clock, force_terminal=True, _environ={"TERM": "xterm"})
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)


def one_attempt(progress: Progress) -> None:
    begin(progress, notes=["preset: auto chose 'tiny'"])
    progress.waiting("starting rank servers: 2")
    progress.attempt("ddp num_cams=1", 2)
    progress.beat("steps", 3, 50)
    progress.result("ddp num_cams=1", result())


# Without a terminal


def test_plain_lines(clock: Clock) -> None:
    assert plain(one_attempt, clock).splitlines() == [
        "2 cells, 4 attempts; results in reports/example",
        "preset: auto chose 'tiny'",
        "0/4 starting rank servers: 2",
        "0/4 ddp num_cams=1, batch 2",
        "1/4 ddp num_cams=1, batch 2: ok, 40.0 samples/s, 512 MiB of 4.00 GiB, 10 s",
    ]


def test_an_attempt_under_way_speaks_every_30_s(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        progress.attempt("ddp", 2)
        for step in range(400):
            progress.beat("steps", step, 400)
            clock.now_s += 0.2

    lines = plain(run, clock).splitlines()
    assert lines[2:] == [
        "0/4 ddp, batch 2: steps 150/400, elapsed 30 s, left n/a",
        "0/4 ddp, batch 2: steps 300/400, elapsed 60 s, left n/a",
    ]
    assert PLAIN_INTERVAL_S == 30


def test_who_is_the_fastest_so_far_is_said_while_an_attempt_runs(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        for name, step_s in (("ddp", 0.1), ("zero2", 0.05), ("fsdp", 0.2)):
            progress.attempt(name, 2)
            progress.result(name, result(ok((step_s,) * 3, (step_s,) * 3)))
        progress.attempt("fsdp2", 2)
        clock.now_s += PLAIN_INTERVAL_S
        progress.beat("steps", 1, 3)

    assert plain(run, clock).splitlines()[-1].endswith("; fastest so far: zero2, batch 2, 80.0 samples/s")
    assert "fastest so far: zero2, batch 2, 80.0 samples/s" in screen(run, clock)


def test_invalid_figures_are_never_the_fastest(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        progress.attempt("ddp", 2)
        progress.result("ddp", result(ok((0.1,) * 3, (0.1,) * 3, losses=(math.nan,) * 4)))
        progress.attempt("zero2", 2)
        clock.now_s += PLAIN_INTERVAL_S
        progress.beat("steps", 1, 3)

    assert "fastest" not in plain(run, clock)


def test_a_long_run_is_said_to_be_one_once(clock: Clock) -> None:
    def run(attempts: int, wall_s: float) -> str:
        def measure(progress: Progress) -> None:
            begin(progress, attempts=attempts)
            for _ in range(2):
                progress.attempt("ddp", 2)
                clock.now_s += wall_s
                progress.result("ddp", result())

        return plain(measure, clock)

    assert run(200, 1.0).splitlines()[1].startswith("200 attempts to measure: Ctrl-C keeps what is measured")
    slow = run(20, 600.0)
    assert "about 3 h 0 min left: Ctrl-C keeps" in slow
    assert slow.count("Ctrl-C") == 1
    assert "Ctrl-C" not in run(20, 1.0)


def test_waiting_again_for_the_same_says_it_once(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        for _ in range(3):
            progress.waiting("starting rank servers: 2")

    assert plain(run, clock).count("starting") == 1


@pytest.mark.parametrize(
    "console",
    [
        {},
        {"force_terminal": True, "_environ": {"TERM": "dumb"}},
        {"force_terminal": False, "_environ": {"TERM": "xterm"}},
    ],
)
def test_no_control_characters(clock: Clock, console: dict[str, Any]) -> None:
    def run(progress: Progress) -> None:
        one_attempt(progress)
        progress.note("a \x1b[31mred\x1b[0m note\r")
        progress.result("x\x07", result(Failed(rank=0, phase="start", reason="one\ntwo\x1b[2J")))

    text = plain(run, clock, **console)
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert "rank 0 in start: one two" in text


def test_every_line_reaches_the_file_at_once(clock: Clock) -> None:
    class Pipe(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    file = Pipe()
    begin(Progress(Console(file=file), clock))
    assert file.flushed.endswith("results in reports/example\n")


# The outcome of an attempt


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Oom(rank=1, phase="bwd", reason="no memory"), "oom, rank 1 in bwd: no memory"),
        (Hang(reason="no result within 60 s"), "hang, no result within 60 s"),
        (Failed(rank=None, phase=None, reason="launcher ended"), "failed, launcher ended"),
        (Skipped(reason="needs two processes"), "skipped, needs two processes"),
    ],
)
@pytest.mark.parametrize("show", [plain, screen])
def test_each_outcome_leaves_a_line_with_its_reason(
    clock: Clock, outcome: Any, line: str, show: Callable[[Callable[[Progress], None], Clock], str]
) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        progress.attempt("ddp", 8)
        progress.result("ddp", result(outcome, batch=8))

    assert f"1/4 ddp, batch 8: {line}\n" in show(run, clock)


def test_memory_on_a_gpu_is_reserved_memory_of_the_worst_rank(clock: Clock) -> None:
    outcome = world(rank(0, memory=vram(10, 20)), rank(1, memory=vram(10, 40)))

    def run(progress: Progress) -> None:
        begin(progress)
        progress.result("ddp", result(outcome, machine=CUDA_MACHINE))

    assert "40.00 GiB of 80.00 GiB" in plain(run, clock)


# Time left


def left(text: str) -> list[str]:
    return re.findall(r"left ([^;\n]*)", text)


def test_time_left_is_unknown_at_first_then_the_mean_of_this_run(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress, attempts=10, finished=4)
        for seconds in (120, 60):
            progress.attempt("ddp", 2)
            clock.now_s += 60
            progress.beat("steps", 1, 2)
            clock.now_s += seconds - 60
            progress.result("ddp", result())
        progress.attempt("ddp", 2)
        for seconds in (60, 1000):
            clock.now_s += seconds
            progress.beat("steps", 1, 2)

    # 5 x 120 s - 60 s, then 4 x 90 s - 60 s, then overdue with three to come.
    assert left(plain(run, clock)) == ["n/a", "9 min", "5 min", "4 min"]


def test_skipped_attempts_do_not_make_the_rest_look_fast(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress, attempts=4)
        progress.attempt("ddp", 2)
        clock.now_s += 120
        progress.result("ddp", result())
        progress.result("zero3", result(Skipped(reason="forbidden")))
        progress.attempt("ddp", 4)
        clock.now_s += 60
        progress.beat("steps", 1, 2)

    assert left(plain(run, clock)) == ["3 min"]


def test_time_left_leaves_out_what_an_attempt_waits_for(clock: Clock) -> None:
    """The build of an extension is told of again and again, the start of servers once."""

    def run(progress: Progress) -> None:
        begin(progress)
        progress.attempt("zero2", 1)
        for _ in range(60):
            progress.waiting("building")
            clock.now_s += 1
        progress.beat("setup", 0, 0)
        clock.now_s += 20
        progress.result("zero2", result(batch=1))
        progress.attempt("zero2", 2)
        progress.waiting("starting rank servers: 2")
        clock.now_s += 600
        progress.beat("setup", 0, 0)

    assert left(plain(run, clock))[-1] == "60 s"


def test_a_search_under_way_counts_from_its_beginning(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress, attempts=2)
        for _ in range(2):
            progress.probing("ddp", "batch 1: does it fit?")
            for _ in range(3):
                progress.attempt("ddp", 1)
                clock.now_s += 200
                progress.beat("measure", 1, 2)
                progress.result("ddp", result())
            progress.verdict("ddp", Stopped(reason="planted"))

    # Of the first nothing is known; the second takes 600 s as well, of which 200, 400 and 600 have passed.
    assert left(plain(run, clock)) == ["n/a", "n/a", "n/a", "7 min", "3 min", "n/a"]


# On a terminal


def test_the_terminal_shows_a_bar_the_attempt_and_its_step(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress, attempts=40, finished=12)
        progress.attempt("zero2 num_cams=4", 8)
        clock.now_s += 5
        progress.beat("warmup", 7, 20)

    text = screen(run, clock)
    assert "40 attempts, 12 of them finished before" in text
    assert "12/40 attempts" in text
    assert "zero2 num_cams=4, batch 8: warmup 7/20" in text
    assert "elapsed 5 s, left n/a" in text
    assert "━" in text


def test_finished_attempts_stay_and_the_bar_goes(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        one_attempt(progress)
        progress.note("rank servers were started again")

    text = screen(run, clock)
    assert text.rindex("1/4 attempts") > text.rindex("0/4 attempts")
    assert text.count("ok, 40.0 samples/s, 512 MiB of 4.00 GiB") == 1
    assert text.count("rank servers were started again") == 1
    raw = plain(run, Clock(), force_terminal=True, _environ={"TERM": "xterm"})
    # The bar is erased and the cursor shown again.
    assert raw.index("\x1b[?25l") < raw.rindex("\x1b[2K") < len(raw)
    assert "\x1b[?25h" in raw


def test_the_terminal_is_given_back_when_the_run_breaks(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        raise KeyboardInterrupt

    file = io.StringIO()
    with (
        pytest.raises(KeyboardInterrupt),
        Progress(Console(file=file, force_terminal=True, _environ={"TERM": "xterm"}), clock) as progress,
    ):
        run(progress)
    assert file.getvalue().rstrip("\r\n").rindex("\x1b[?25h") > file.getvalue().rindex("\x1b[?25l")


def test_ending_twice_is_fine(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress)
        progress.end()
        progress.end()

    screen(run, clock)


def test_more_attempts_than_planned_do_not_overflow_the_bar(clock: Clock) -> None:
    def run(progress: Progress) -> None:
        begin(progress, attempts=1)
        progress.result("ddp", result(ok()))
        progress.result("ddp", result(ok(), batch=4))
        progress.beat("steps", 0, 0)

    assert "2/2 attempts" in screen(run, clock)


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("closed")


def test_the_measuring_goes_on_when_the_terminal_is_gone(clock: Clock) -> None:
    with Progress(Console(file=Gone(), force_terminal=True, _environ={"TERM": "xterm"}), clock) as progress:
        begin(progress)
        progress.beat("measure", 1, 10)
        progress.result("ddp", result(ok()))


@pytest.mark.parametrize("stop", [SystemExit(129), KeyboardInterrupt()])
def test_a_signal_is_heard_while_a_terminal_that_is_gone_is_drawn_on(stop: BaseException) -> None:
    """As when its window is closed."""
    coming: list[BaseException] = []

    def clock() -> float:
        if coming:
            raise coming.pop()
        return 1000.0

    with Progress(Console(file=Gone(), force_terminal=True, _environ={"TERM": "xterm"}), clock) as progress:
        begin(progress)
        coming.append(stop)
        with pytest.raises(type(stop)):
            progress.beat("measure", 1, 10)
