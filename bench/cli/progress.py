"""The progress display of a sweep: a bar on a terminal, plain lines elsewhere. It has no thread: each call redraws."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bench.errors import one_line
from bench.records.outcome import INVALID, KINDS, Result
from bench.records.verdict import Stopped, Verdict
from bench.report.doubts import doubts
from bench.report.naming import REASON_LIMIT, search_end
from bench.report.render.terminal import COLORS
from bench.report.rows import Sampled
from bench.report.summary import summarize
from bench.units import counted, duration, memory_size, rate

PLAIN_INTERVAL_S = 30.0
"""Without a terminal, a running attempt prints at most one line in this time."""
MANY_ATTEMPTS = 200
LONG_S = 3600.0
"""More attempts than this, or more time left, are said once."""


class Progress:
    """Shows how far a sweep is. As a context manager, it restores the terminal at its end.

    Args:
        console: shows a bar if it is a terminal that can redraw, plain lines otherwise.
        clock: seconds, for elapsed times only.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._attempts = self._finished = 0
        self._doing = self._at = ""
        self._began_s = self._spoke_s = clock()
        self._attempt_began_s: float | None = None
        self._timed, self._wall_s = 0, 0.0
        self._probe_began_s: float | None = None
        self._waiting_since_s: float | None = None
        self._fastest, self._fastest_rate = "", 0.0
        self._said_long = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, *, cells: int, attempts: int, finished: int, folder: str, notes: Sequence[str]) -> None:
        """The run starts; so many of its planned attempts are ``finished`` already, and are not shown again."""
        self._attempts, self._finished = attempts, finished
        self._began_s = self._clock()
        already = f", {finished} of them finished before" if finished else ""
        self._say(f"{counted(cells, 'cell')}, {counted(attempts, 'attempt')}{already}; results in {folder}")
        for note in notes:
            self._say(note)
        if attempts - finished >= MANY_ATTEMPTS:
            self._say_long(f"{counted(attempts - finished, 'attempt')} to measure")
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, get_renderable=self._display)
            with _ignore_write_errors():
                self._live.start(refresh=True)

    def waiting(self, what: str) -> None:
        """Something other than an attempt takes time, such as a build. It does not count in the mean of attempts."""
        if self._attempt_began_s is None and self._probe_began_s is None:
            self._start(what)
        else:
            self._leave_out_waiting()
            self._waiting_since_s = self._clock()
            self._show_at(what)

    def planned(self, attempts: int, why: str = "") -> None:
        """How many attempts there are, now that this is known better, and why there are more of them."""
        self._attempts = attempts
        if why:
            self._say(f"{self._count()} {why}")
        self._redraw()

    def attempt(self, label: str, batch_per_rank: int, launch: int = 1) -> None:
        """An attempt starts; ``launch``: which of its repeated launches."""
        self._attempt_began_s = self._clock()
        self._start(f"{label}, {_at_batch(batch_per_rank, launch)}")

    def beat(self, phase: str, step: int, steps: int) -> None:
        """How far the slowest rank of the attempt is; ``steps`` is 0 for a stage without steps."""
        self._leave_out_waiting()
        self._show_at(f"{phase} {step}/{steps}" if steps else phase)

    def _leave_out_waiting(self) -> None:
        """Leave the time since the last call of ``waiting`` out of the attempt's and the search's duration."""
        if self._waiting_since_s is None:
            return
        waited_s, self._waiting_since_s = self._clock() - self._waiting_since_s, None
        if self._attempt_began_s is not None:
            self._attempt_began_s += waited_s
        if self._probe_began_s is not None:
            self._probe_began_s += waited_s

    def _show_at(self, where: str) -> None:
        self._at = where
        self._redraw()
        if self._live is None and self._clock() - self._spoke_s >= PLAIN_INTERVAL_S:
            fastest = f"; {self._fastest}" if self._fastest else ""
            self._say(f"{self._count()} {self._doing}: {self._at}, {self._times()}{fastest}")

    def result(self, label: str, result: Result) -> None:
        """An attempt ended, or was skipped."""
        self._leave_out_waiting()
        if self._probe_began_s is None:
            self._finished += 1
            if self._attempt_began_s is not None:
                self._add_wall(self._attempt_began_s)
        self._attempt_began_s, self._doing, self._at = None, "", ""
        summarized = summarize([result])
        [row] = summarized.rows
        summary = row.reason or ""
        if isinstance(row.measured, Sampled):
            summary = f"{_headline(row.measured)}, {duration(result.wall_s)}"
        elif row.measured:
            summary = f"{rate(row.rate)} samples/s, {duration(result.wall_s)}"
        where = one_line(f"{self._count()} {label}, {_at_batch(row.batch_per_rank, result.attempt.launch)}:")
        wrong = [doubt.reason for doubt in doubts(summarized) if doubt.grade == "invalid"]
        traits = INVALID if wrong else KINDS[row.outcome]
        if row.rate > self._fastest_rate and not wrong and not row.short:
            self._fastest_rate = row.rate
            self._fastest = f"fastest so far: {label}, batch {row.batch_per_rank}, {rate(row.rate)} samples/s"
        outcome = (traits.word, COLORS[traits.tone])
        summary = "; ".join([*(reason.rstrip(".") for reason in wrong[:1]), summary])
        self._say(Text.assemble(f"{where} ", outcome, f", {one_line(summary, REASON_LIMIT)}"))

    def probing(self, label: str, what: str) -> None:
        """A search takes its next step. Its attempts are shown, but the whole search counts as one."""
        if self._probe_began_s is None:
            self._probe_began_s = self._clock()
        self._doing, self._at = label, ""
        self._say(f"{self._count()}  {label}  {what}")

    def verdict(self, label: str, found: Verdict | Stopped, needs_bytes: int | None = None) -> None:
        """A search ended."""
        self._finished += 1
        if self._probe_began_s is not None:
            self._add_wall(self._probe_began_s)
        self._probe_began_s, self._doing, self._at = None, "", ""
        words = search_end(found, needs_bytes)
        if isinstance(found, Verdict) and (chosen := found.advised):
            # No advice: a report of the whole run may doubt what this search measured.
            words = f"{'safe' if found.safe else 'best'} batch {chosen.batch}: {words}"
        color = "green" if isinstance(found, Verdict) else "red"
        line = Text(one_line(f"{self._count()}  {label}") + "  ")
        self._say(line.append("probed", color).append(f"  {one_line(words)}"))

    def audited(self, label: str, good: bool, words: str) -> None:
        """An audit of one cell ended."""
        self._finished += 1
        self._attempt_began_s, self._doing, self._at = None, "", ""
        self._say(Text(one_line(f"{self._count()} {label}: {words}"), "green" if good else "red"))

    def note(self, text: str) -> None:
        """Print a warning that stays on the screen."""
        self._say(Text(one_line(text), style="yellow"))

    def end(self) -> None:
        """Remove the bar: the run is over. May be called again."""
        if self._live is not None:
            with _ignore_write_errors():
                self._live.stop()
            self._live = None

    def _start(self, what: str) -> None:
        changed = (what := one_line(what)) != self._doing
        self._doing, self._at = what, ""
        self._redraw()
        if self._live is None and changed:
            self._say(f"{self._count()} {self._doing}")

    def _say(self, line: str | Text) -> None:
        """One line that stays. Unwrapped, so that a log can be searched."""
        self._spoke_s = self._clock()
        with _ignore_write_errors():
            self._console.print(Text(one_line(line)) if isinstance(line, str) else line, soft_wrap=True)
        self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            with _ignore_write_errors():
                self._live.refresh()

    def _display(self) -> Group:
        first = Table.grid(padding=(0, 2))
        n_attempts = max(self._attempts, self._finished)
        bar = ProgressBar(total=max(1, n_attempts), completed=self._finished, width=30)
        first.add_row(bar, f"{self._count()} attempts", self._times())
        second = Text(f"{self._doing}: {self._at}" if self._at else self._doing, no_wrap=True, overflow="ellipsis")
        third = [Text(one_line(self._fastest), no_wrap=True, overflow="ellipsis")] if self._fastest else []
        return Group(first, second, *third)

    def _count(self) -> str:
        return f"{self._finished}/{max(self._attempts, self._finished)}"

    def _times(self) -> str:
        return f"elapsed {duration(self._clock() - self._began_s)}, left {duration(self._left_s())}"

    def _add_wall(self, began_s: float) -> None:
        """Keeps two sums instead of a list: memory does not grow with thousands of attempts."""
        self._timed += 1
        self._wall_s += self._clock() - began_s
        if not self._said_long and (left_s := self._left_s() or 0.0) > LONG_S:
            self._say_long(f"about {duration(left_s)} left")

    def _say_long(self, why: str) -> None:
        self._said_long = True
        self._say(f"{why}: Ctrl-C keeps what is measured, and the same command resumes; --dry-run lists the rest")

    def _left_s(self) -> float | None:
        """Estimated by the mean of this run's attempts, without skipped ones.

        None before the first, in a build, and when the last attempt or search takes longer than the others.
        """
        if not self._timed or self._waiting_since_s is not None:  # nobody knows how long a build takes
            return None
        began_s = self._attempt_began_s if self._probe_began_s is None else self._probe_began_s
        under_way_s = 0.0 if began_s is None else self._clock() - began_s
        each_s, left = self._wall_s / self._timed, self._attempts - self._finished
        # An attempt that takes longer than the mean does not change the estimate of the later ones.
        return max(0.0, each_s - under_way_s) + each_s * max(0, left - 1) or None


@contextmanager
def _ignore_write_errors() -> Iterator[None]:
    """A closed terminal or a full disk must not stop measuring. A signal must, also while rich is drawing: the error
    of rich's own clean-up then hides it."""
    before = sys.exception()
    try:
        yield
    except OSError as error:
        raised = error.__context__
        while raised is not None and raised is not before:
            if isinstance(raised, KeyboardInterrupt | SystemExit):
                raise raised from None
            raised = raised.__context__


def _at_batch(batch_per_rank: int, launch: int) -> str:
    return f"batch {batch_per_rank}" + (f", launch {launch}" if launch > 1 else "")


def _headline(measured: Sampled) -> str:
    worst = max((rank.raw.memory for rank in measured.ranks), key=lambda one: one.held_bytes or 0)
    used = f"{memory_size(worst.held_bytes)} of {memory_size(worst.capacity_bytes)}"
    return f"{rate(measured.samples_per_s_global)} samples/s, {used}"
