"""The matrices that come with bench, by name: files of `matrices/`, which is installed as `bench/matrices`."""

import re
from pathlib import Path

from bench.errors import InputError, near_miss


def bundled() -> dict[str, Path]:
    """The files by name, in alphabetical order."""
    return {file.stem: file for file in sorted((Path(__file__).parents[1] / "matrices").glob("*.yaml"))}


def named(matrix: Path) -> Path:
    """The file of the bundled matrix called ``matrix``, such as ``quickstart``; else ``matrix`` itself.

    A file of the user's with that name comes first.

    Raises:
        InputError: ``matrix`` is a bare name, and neither a file nor a bundled matrix has it.
    """
    ours, name = bundled(), str(matrix)
    if name in ours and not matrix.is_file():
        return ours[name]
    if matrix.exists() or matrix.suffix or matrix.name != name:
        return matrix
    theirs = [file.name for file in Path().glob("*.yaml")]
    raise InputError("no such file", where=name, allowed=["a file", *ours], fix=near_miss(name, [*ours, *theirs]))


def purpose(text: str) -> str:
    """The first sentence of the comment above a matrix; line 1 names its schema."""
    comment = " ".join(line.removeprefix("# ") for line in text.splitlines()[1:] if line.startswith("#"))
    return re.split(r"(?<=[.?]) ", comment)[0]
