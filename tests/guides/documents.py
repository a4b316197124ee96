"""Reads a document: its commands with the output it shows, its files, its links.

In a fenced ``console`` block, lines that begin with ``$ `` are commands and the others are output. ``…`` stands for
anything left out: a part of a line, or whole lines. A comment before a block says more of it:
``<!-- long -->``, ``<!-- exit: 1 -->`` (of its last command), ``<!-- not run: reason -->``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]* -->\n)*)^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_FILE_NAME = re.compile(r"# ([\w-]+(?:/[\w-]+)*\.\w+)\n")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?")
_ID = re.compile(r"\b[0-9a-f]{10}\b")
_UNIT = re.compile(r"N (?:[KMG]i?B|ms|s|min|h)\b")
MARK = "…"


@dataclass(frozen=True)
class Command:
    text: str
    output: tuple[str, ...]
    """As the document shows it; empty when it shows none."""
    line: int
    exit_code: int = 0
    long: bool = False
    not_run: str | None = None


@dataclass(frozen=True)
class File:
    name: str
    language: str
    content: str
    line: int


@dataclass(frozen=True)
class Document:
    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Document":
        return cls(path, path.read_text("utf-8"))

    def steps(self) -> list[File | Command]:
        """Files to write and commands to run, in order."""
        found: list[File | Command] = []
        for block, line in self._blocks():
            if block["language"] == "console":
                found += _commands(block, line)
            elif name := _FILE_NAME.match(block["body"]):
                found.append(File(name[1], block["language"], block["body"], line))
        return found

    def unnamed(self, language: str) -> list[int]:
        """Lines of the blocks of a language that no file name makes usable."""
        return [
            line
            for block, line in self._blocks()
            if block["language"] == language and not _FILE_NAME.match(block["body"])
        ]

    def broken_links(self) -> list[str]:
        targets = _LINK.findall(_FENCE.sub("", self.text))
        return [target for target in targets if not re.match(r"https?:", target) and not self._resolves(target)]

    def inline(self) -> list[str]:
        """Inline code."""
        return re.findall(r"`([^`\n]+)`", _FENCE.sub("", self.text))

    def _resolves(self, target: str) -> bool:
        name, _, anchor = target.partition("#")
        path = self.path.parent / name if name else self.path
        return path.exists() and (not anchor or anchor in _anchors(path.read_text("utf-8")))

    def _blocks(self) -> Iterator[tuple[re.Match[str], int]]:
        for block in _FENCE.finditer(self.text):
            yield block, self.text.count("\n", 0, block.start("body")) + 1


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _commands(block: re.Match[str], line: int) -> list[Command]:
    said = dict(re.findall(r"<!-- ([^:\n]*?)(?:: ([^\n]*?))? -->", block["comments"]))
    found: list[tuple[str, list[str], int]] = []
    lines = iter(enumerate(block["body"].splitlines(), line))
    for number, text in lines:
        if text.startswith("$ "):
            command = text[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines)[1].lstrip()
            found.append((command, [], number))
        else:
            found[-1][1].append(text)
    last = len(found) - 1
    return [
        Command(
            text=text,
            output=tuple(output),
            line=number,
            exit_code=int(said.get("exit") or 0) if index == last else 0,
            long="long" in said,
            not_run=said.get("not run"),
        )
        for index, (text, output, number) in enumerate(found)
    ]


def differences(expected: tuple[str, ...], printed: str) -> str | None:
    """The first expected lines that the output lacks, in words; None when all are there, in order."""
    if not expected:
        return None
    lines = [_masked(line) for line in printed.rstrip().splitlines()]
    groups: list[list[str]] = [[]]
    for line in map(_masked, expected):
        if line == MARK:
            groups.append([])
        else:
            groups[-1].append(line)
    at = 0
    for index, group in enumerate(groups):
        starts = set(range(at, len(lines) - len(group) + 1))
        if index == 0:
            starts &= {0}
        if index == len(groups) - 1 and group:
            starts &= {len(lines) - len(group)}
        place = min((start for start in starts if _alike(group, lines[start : start + len(group)])), default=None)
        if place is None:
            return "\n  ".join(["the output lacks, or has in another place:", *group])
        at = place + len(group)
    return None


def _alike(group: list[str], lines: list[str]) -> bool:
    return all(
        re.fullmatch(".*?".join(re.escape(part.strip()) for part in wanted.split(MARK)), line)
        for wanted, line in zip(group, lines, strict=True)
    )


def _masked(line: str) -> str:
    """Numbers, ids, units that follow a number, and the widths of columns may differ."""
    line = _NUMBER.sub("N", _ID.sub("ID", line))
    line = re.sub(r"-{2,}:?", "--", _UNIT.sub("N UNIT", line))
    return re.sub(r"\s+", " ", line).strip()
