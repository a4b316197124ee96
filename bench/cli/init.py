"""`bench init`: a workload and a matrix to start from, copied from bench/templates."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from bench.errors import InputError


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if it is missing.")] = Path(),
) -> None:
    """Write a workload and a matrix to start from.

    The matrix measures the workload as it is. Overwrites nothing.
    """
    templates = [file for file in files("bench").joinpath("templates").iterdir() if file.is_file()]
    texts = {folder / file.name: file.read_text("utf-8") for file in sorted(templates, key=lambda file: file.name)}
    if taken := next((path for path in texts if path.exists()), None):
        raise InputError(
            "exists, and bench init overwrites nothing",
            where=str(taken),
            fix="name another folder: `bench init FOLDER`",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    matrix = next(path for path in texts if path.suffix == ".yaml")
    typer.echo(f"wrote {' and '.join(map(str, texts))}; `bench run {matrix}` measures them")
