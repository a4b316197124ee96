"""`bench init`: a workload and a matrix to start from, copied from bench/templates; or a matrix for a script."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from bench.errors import InputError


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if it is missing.")] = Path(),
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE", help="Write a matrix for this training script instead, beside it."),
    ] = None,
) -> None:
    """Write a workload and a matrix to start from.

    The matrix measures the workload as it is. Overwrites nothing.
    """
    texts = _templates(folder) if script is None else _for_script(script)
    if taken := next((path for path in texts if path.exists()), None):
        raise InputError(
            "exists, and bench init overwrites nothing",
            where=str(taken),
            fix="name another folder: `bench init FOLDER`" if script is None else "remove it, or run it as it is",
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    matrix = next(path for path in texts if path.suffix == ".yaml")
    both = " --axis batch=8,16` measures two batches; without --axis, it searches the largest"
    measures = "` measures them" if script is None else both
    typer.echo(f"wrote {' and '.join(map(str, texts))}; `bench run {shlex.quote(str(matrix))}{measures}")


def _templates(folder: Path) -> dict[Path, str]:
    templates = [file for file in files("bench").joinpath("templates").iterdir() if file.is_file()]
    return {folder / file.name: file.read_text("utf-8") for file in sorted(templates, key=lambda file: file.name)}


def _for_script(script: Path) -> dict[Path, str]:
    """Raises InputError if it cannot be read, or bench does not find how to hand over a batch."""
    from bench.matrix.script_source import matrix_for

    try:
        source = script.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(script)) from error
    return {script.with_suffix(".yaml"): matrix_for(source, script.name)}
