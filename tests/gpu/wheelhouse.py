"""`make wheelhouse`: the wheels that a machine without network needs beside the packages that it has.

Pip evaluates the conditions of requirements for the Python that runs it. So this walks the requirements itself, for the
Python that will install them, and has pip fetch each package at the version in constraints.txt.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent.parent
HAVE = ("torch", "accelerate", "transformers", "numpy")
"""accelerate needs numpy, so that one that has it has numpy too."""
BUILT = ("deepspeed",)
"""Packages without wheels. DeepSpeed without its operators is pure Python; it compiles them where they are used."""
GLIBC = (28, 27, 24, 17, 12, 5)
"""Minor versions in the tags of wheels for Linux. Pip takes those that it is told, and no older ones."""
EVERY = frozenset({""})
"""What is always needed, without an extra."""


def roots() -> list[Requirement]:
    """What bench and its checks need, and what builds bench."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = content["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["tests"], *content["build-system"]["requires"]]
    return [Requirement(text) for text in texts]


def pins() -> dict[str, str]:
    """Version by package, from constraints.txt."""
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def applying(
    requirements: Iterable[Requirement], target: tuple[str, str], extras: Collection[str]
) -> list[Requirement]:
    """Those that hold for a Python and a processor, with some extras."""
    python, machine = target
    there = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    there |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    return [
        one
        for one in requirements
        if one.marker is None or any(one.marker.evaluate({**there, "extra": extra}) for extra in extras)
    ]


def requirements_of(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]


def fetch(names: Sequence[str], to: Path, target: tuple[str, str]) -> None:
    """Have pip download the wheels of some packages, or build them."""
    python, machine = target
    pinned = pins()
    exact = {name: f"{name}=={pinned[name]}" if name in pinned else name for name in names}
    if ready := [text for name, text in exact.items() if name not in BUILT]:
        options = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--dest", str(to)]
        options += [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
        pip("download", *options, f"--platform=manylinux2014_{machine}", *ready)
    for name in set(BUILT) & set(exact):
        pip("wheel", "--no-build-isolation", "--wheel-dir", str(to), exact[name], DS_BUILD_OPS="0")


def pip(command: str, *arguments: str, **environment: str) -> None:
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", command, "--no-deps", *arguments]
    subprocess.run(line, check=True, env={**os.environ, **environment})


def wheel_of(name: str, folder: Path) -> Path:
    """The newest wheel of a package."""
    found = [file for file in folder.glob("*.whl") if parse_wheel_filename(file.name)[0] == name]
    return max(found, key=lambda file: parse_wheel_filename(file.name)[1])


def collect(to: Path, target: tuple[str, str], have: Iterable[str]) -> list[Path]:
    """Fetch all wheels, and remove those that are no longer needed."""
    there = {canonicalize_name(name) for name in have}
    wheels: dict[str, Path] = {}
    done: set[tuple[str, str]] = set()
    left = applying(roots(), target, EVERY)
    to.mkdir(parents=True, exist_ok=True)
    while left:
        extras: dict[str, set[str]] = {}
        for one in left:
            if (name := canonicalize_name(one.name)) not in there:
                asked = {(name, extra) for extra in (EVERY if name not in wheels else set()) | one.extras} - done
                extras.setdefault(name, set()).update(extra for _, extra in asked)
                done |= asked
        if missing := [name for name in extras if name not in wheels]:
            fetch(missing, to, target)
            wheels |= {name: wheel_of(name, to) for name in missing}
        left = [
            further
            for name, chosen in extras.items()
            if chosen
            for further in applying(requirements_of(wheels[name]), target, chosen)
        ]
    pip("wheel", "--wheel-dir", str(to), str(ROOT))
    kept = [*wheels.values(), wheel_of("training-bench", to)]
    for file in set(to.glob("*.whl")) - set(kept):
        file.unlink()
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "wheelhouse", help="the folder")
    parser.add_argument("--python", required=True, help="the version of the machine's Python, such as 3.12")
    parser.add_argument("--machine", default=os.uname().machine, help="its processor: x86_64 or aarch64")
    parser.add_argument("--have", nargs="*", default=HAVE, help="packages that it has, with all that they need")
    chosen = parser.parse_args()
    wheels = collect(chosen.to, (chosen.python, chosen.machine), chosen.have)
    mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(f"{len(wheels)} wheels, {mib:.0f} MiB, in {os.path.relpath(chosen.to)}, for Python {chosen.python} on")
    print(f"{chosen.machine} with {', '.join(chosen.have)}")


if __name__ == "__main__":
    main()
