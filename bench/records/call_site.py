"""From a Python stack to the place in the user's code."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Frame(NamedTuple):
    """One function of a stack."""

    name: str
    filename: str
    line: int


_RUNNER, _OBSERVE = (str(Path(__file__).parents[1] / room) for room in ("runner", "observe"))
_LIBRARY = re.compile(
    r"(-packages/(torch|accelerate|deepspeed|typing_extensions)"
    r"|/python3\.\d+/(concurrent|contextlib|threading|functools))[/.]"
)
"""Where they are installed, in any environment: a folder of the user may have the name of one."""
_BETWEEN = (*(f"{_RUNNER}/{name}.py" for name in ("first_forward", "forward", "kernels", "units")), _OBSERVE)
"""They watch what the workload calls, and so stand between it and torch."""
_CALLS = "/torch/nn/modules/module.py"
"""Frames between a module and its forward."""


def site(frames: Sequence[Frame]) -> str:
    """The innermost function of the workload; without one, the function that the runner's step called.

    Args:
        frames: innermost first.
    """
    called: str | None = None
    for frame in frames:
        if frame.filename.startswith(_BETWEEN):
            continue
        if frame.filename.startswith(_RUNNER):
            return f"{called}, called by {_place(frame)}" if called else _place(frame)
        if not _LIBRARY.search(frame.filename):
            if not frame.name.startswith("<"):  # the name of a comprehension says nothing; its function's does
                return _place(frame)
            continue
        if not frame.filename.endswith(_CALLS):
            called = frame.name
    return _place(frames[0]) if frames else "an unknown place"


def _place(frame: Frame) -> str:
    file = Path(frame.filename)
    return f"{frame.name} ({file.parent.name}/{file.name}:{frame.line})"


_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def site_of_dump(text: str) -> str | None:
    """`site` of the training thread in a dump of `faulthandler`; None if the dump does not hold it."""
    for thread in re.split(r"^(?=Thread |Current thread )", text, flags=re.MULTILINE):
        frames = list(_frames(thread))
        if any(frame.filename.startswith(_RUNNER) and frame.name in ("serve", "main") for frame in frames):
            return site(frames)
    return None


def _frames(thread: str) -> Iterator[Frame]:
    for filename, line, name in _DUMPED.findall(thread):
        yield Frame(name, filename, int(line))
