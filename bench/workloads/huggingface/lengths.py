"""Samples of many lengths: drawn between two bounds, or those of a file. Imports no torch."""

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

SHORTEST = 2
"""A text of one token has nothing to predict."""
Length = Annotated[int, Field(ge=SHORTEST)]


class Uniform(BaseModel, frozen=True, extra="forbid"):
    """Lengths between two bounds, both included, each as often as any other."""

    uniform: list[Length]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.uniform) != 2 or self.uniform[0] > self.uniform[1]:
            raise ValueError(f"uniform: {self.uniform}: two lengths, of which the shortest length comes first")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        shortest, longest = self.uniform
        return shortest, longest

    def of(self, _index: int, draw: Callable[[int, int], int]) -> int:
        return draw(*self.uniform)


class Listed(BaseModel, frozen=True, extra="forbid"):
    """The lengths in a file: an integer a line, sample by sample."""

    file: str
    sha256: str = ""
    """Of its content, in short: bench writes it, so that a changed file makes another cell."""

    @model_validator(mode="after")
    def _the_same_file(self) -> Self:
        digest = _read(self.file)[1]
        if self.sha256 not in ("", digest):
            raise ValueError(f"{self.file} has changed since its matrix was read")
        object.__setattr__(self, "sha256", digest)
        return self

    @property
    def lengths(self) -> tuple[int, ...]:
        return _read(self.file)[0]

    @property
    def bounds(self) -> tuple[int, int]:
        return min(self.lengths), max(self.lengths)

    def of(self, index: int, _draw: Callable[[int, int], int]) -> int:
        return self.lengths[index % len(self.lengths)]


def _kind(value: object) -> str:
    """Which of the three a value is meant to be, so that an error speaks of that alone."""
    if isinstance(value, dict | BaseModel):
        return "file" if "file" in dict(value) else "uniform"
    return "tokens"


Lengths = Annotated[
    Annotated[Length, Tag("tokens")] | Annotated[Uniform, Tag("uniform")] | Annotated[Listed, Tag("file")],
    Discriminator(_kind),
]
"""One for all samples, or many."""


@cache
def _read(file: str) -> tuple[tuple[int, ...], str]:
    """The lengths, and the beginning of the digest. The file is looked for like the module of any other workload.

    Raises:
        ValueError: it cannot be read, or a line is no length.
    """
    places = [Path(place) / file for place in (*sys.path, "")]
    path = next((place for place in places if place.is_file()), Path(file))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; its path is relative to the matrix file") from error
    lengths = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not (line.strip().isdecimal() and int(line) >= SHORTEST):
            raise ValueError(
                f"{path}:{number}: {line[:40]!r} is no length: write an integer from {SHORTEST} on, one a line"
            )
        lengths.append(int(line))
    if not lengths:
        raise ValueError(f"{path} is empty: write the length of a sample a line")
    return tuple(lengths), hashlib.sha256(content).hexdigest()[:12]
