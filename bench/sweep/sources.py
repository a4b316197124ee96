"""Digests of the source files that decide what ranks run: bench's runner, and the workload with its own imports.

Files are found by path, so that no part of a workload is imported for it.
"""

import hashlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import bench
from bench import workloads
from bench.records.sources import Sources
from bench.workloads import huggingface

RUNNER = (
    *("runner", "observe", "launch/environment.py", "backends", "workloads", "diagnosis/oom_words.py"),
    *("machine/energy.py", "machine/hardware.py", "machine/numa.py"),
)
"""Below bench/: a result depends on no other file, except through what the cell's id covers."""
SOURCES = (".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
"""Endings of the files of a script that decide what it does; others hold data."""
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+([A-Za-z_][\w.]*(?:[ \t]*,[ \t]*[A-Za-z_][\w.]*)*))", re.M
)


def of(name: str) -> Sources:
    """The sources of attempts with the workload called ``name``, which has been loaded."""
    home = Path(bench.__file__).parent
    ours = [file for part in RUNNER for file in _files(home / part)]
    if name.startswith(huggingface.PREFIX):
        return _digests(home.parent, ours)  # transformers' version is in the machine's record
    models = Path(huggingface.__file__).parent
    ours = [file for file in ours if models not in file.parents]
    top, _, rest = workloads.modules_of(name)[0].partition(".")
    bundled = rest.partition(".")[0] if top == "bench" else None
    root, theirs = (home, _files(home / bundled)) if bundled else _workload(top)
    return {**_digests(home.parent, ours), **_digests(root, theirs)}


def of_script(folder: Path, command: Sequence[str]) -> Sources:
    """The sources of attempts with a script: the files in ``folder`` that its command names, and what they import from
    there."""
    home = Path(bench.__file__).parent
    words = [word.replace("{{", "{").replace("}}", "}") for word in command]
    modules = [after.partition(".")[0] for word, after in itertools.pairwise(words) if word == "-m"]
    modules = [module for module in modules if module.isidentifier()]  # -m may be the script's own option
    names = [*words, *(word.partition("=")[2] for word in words)]  # --config=a.yaml
    files = [folder / name for name in names if Path(name).suffix in SOURCES]
    # os.path: a word may be a program of a shell, and too long for a path.
    own = [file for file in files if file.is_relative_to(folder) and os.path.isfile(file)]
    roots = list(dict.fromkeys([folder, *(file.parent for file in own)]))  # python imports from a script's own folder
    named = {str(file): [file] for file in own} | {module: _module(folder, module) for module in modules}
    theirs = _with_imports(roots, named)
    ours = [file for part in ("observe", "launch/environment.py", "backends") for file in _files(home / part)]
    return {**_digests(home.parent, ours), **_digests(folder, theirs)}


def _workload(top: str) -> tuple[Path, list[Path]]:
    """The folder that holds the workload's module or package, and its files.

    Modules beside it belong to it when one of the files imports them. An installed workload is its own package alone:
    the versions of what lies beside it are in the machine's record.
    """
    module = sys.modules[top]
    packages = list(getattr(module, "__path__", ()))
    place = Path(packages[0] if packages else module.__file__ or "")
    root = place.parent
    if root.name in ("site-packages", "dist-packages"):
        return root, _files(place)
    return root, _with_imports([root], {top: _files(place)})


def _with_imports(roots: Sequence[Path], found: dict[str, list[Path]]) -> list[Path]:
    """Files by the name of their module, and those of the modules in ``roots`` that they import."""
    waiting = [file for files in found.values() for file in files if file.suffix == ".py"]
    while waiting:
        for name in _imported(waiting.pop()):
            if name not in found and name != "bench":
                found[name] = [file for root in roots for file in _module(root, name)]
                waiting += found[name]
    return [file for files in found.values() for file in files]


def _module(root: Path, name: str) -> list[Path]:
    return [*_files(root / name), *_files(root / f"{name}.py")]


def _files(place: Path) -> list[Path]:
    """A source file itself, or all source files below a folder; editors' hidden files and dangling links left out."""
    if place.is_file():
        return [place]
    below = (file.relative_to(place) for file in sorted(place.rglob("*.py")))
    shown = [place / file for file in below if not any(part.startswith(".") for part in file.parts)]
    return [file for file in shown if file.is_file()]


def _imported(file: Path) -> Iterator[str]:
    """First parts of the names that a file imports; words of a docstring that look like an import do no harm."""
    for one, several in _IMPORT.findall(file.read_text(encoding="utf-8", errors="replace")):
        yield from (name.strip().partition(".")[0] for name in (one or several).split(","))


def _digests(root: Path, files: list[Path]) -> Sources:
    return {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files}
