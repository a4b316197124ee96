"""Follows the jobs of a run: what bench writes in them, how Slurm sees them, and what Ctrl-C does."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bench.cli.printing import console
from bench.errors import InputError, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from bench.launch.slurm.follow import Following


def follow(root: Path, name: str, script: str, jobs: int, is_finished: Callable[[], bool]) -> list[str]:
    """Submit and follow jobs until all is measured. Returns what bench wrote last where it refused the matrix.

    Args:
        is_finished: whether the run holds all that the command asks for, as far as that is known.

    Raises:
        InputError: Slurm refuses the request, or will never run it; or jobs end without a result.
    """
    from bench.launch.slurm.client import ControllerUnavailable, RequestRejected
    from bench.launch.slurm.follow import Cancelled, Following, GivesUp, NeverRuns
    from bench.store import disk, run_lock

    jobs_folder = root / "slurm"
    try:
        jobs_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk.refused(root, error) from error
    with run_lock.held(jobs_folder), _Screen() as screen:
        following = Following(root, name, script, jobs, screen, is_finished)
        screen.note(f"{name}: results in {root}")
        try:
            return following.run()
        except KeyboardInterrupt:
            screen.end()
            _detach_or_cancel(following, root)
            raise typer.Exit(130) from None
        except Cancelled:
            screen.end()
            typer.echo(f"cancelled by another bench; the same command resumes: {root}", err=True)
            raise typer.Exit(130) from None
        except (ControllerUnavailable, RequestRejected, NeverRuns) as error:
            raise InputError(
                f"Slurm: {error}",
                where="--launcher slurm",
                fix="see the section `slurm` of the matrix, and the options",
            ) from error
        except GivesUp as error:
            raise InputError(str(error), where=str(jobs_folder), fix="see the logs of the jobs there") from error


def _detach_or_cancel(following: "Following", root: Path) -> None:
    """What becomes of the jobs after Ctrl-C. Without a terminal to ask on, they go on."""
    from bench.launch.slurm.client import ControllerUnavailable, RequestRejected

    numbers = ", ".join(following.living) or "none yet"
    if following.living and sys.stdin.isatty():
        try:
            answer = typer.prompt(f"jobs {numbers}: detach, and let them go on, or cancel them? [d/c]", default="d")
        except (typer.Abort, KeyboardInterrupt):
            answer = "d"
        if answer.strip().lower().startswith("c"):
            try:
                following.cancel()
            except (ControllerUnavailable, RequestRejected) as error:
                raise InputError(f"Slurm: {error}", fix=f"try `bench cancel {root}` later") from error
            typer.echo(f"cancelled: {numbers}; the same command resumes: {root}", err=True)
            return
    typer.echo(f"detached; jobs go on: {numbers}. The same command follows them again,", err=True)
    typer.echo(f"`bench cancel {root}` ends them", err=True)


class _Screen:
    """Lines that stay, and on a terminal one that says what is so now. It has no thread."""

    def __init__(self) -> None:
        self._console: Console = console()
        self._live: Live | None = None
        self._now, self._began_s = "", time.monotonic()

    def __enter__(self) -> "_Screen":
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True, get_renderable=self._display)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        self.relay(f"slurm: {one_line(text)}")

    def relay(self, line: str) -> None:
        from rich.text import Text

        self._console.print(Text(line), soft_wrap=True)
        self._redraw()

    def status(self, text: str) -> None:
        self._now = text
        self._redraw()

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def _display(self) -> str:
        from bench.units import duration

        return f"{self._now}, elapsed {duration(time.monotonic() - self._began_s)}"
