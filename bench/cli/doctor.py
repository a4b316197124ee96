"""--version, schema and doctor."""

import json
from typing import Annotated, Literal

import typer

from bench import __version__
from bench.cli.app import app


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print bench's version.")
    ] = False,
) -> None: ...


@app.command()
def schema(
    of: Annotated[Literal["matrix", "result"], typer.Argument(help="The matrix file, or a stored result.json.")],
) -> None:
    """Print a JSON Schema, for editors and for programs that read results."""
    from bench import matrix
    from bench.records.outcome import Result

    content = matrix.json_schema() if of == "matrix" else Result.model_json_schema()
    typer.echo(json.dumps(content, indent=2))


@app.command()
def doctor() -> None:
    """Say what this machine can run, and what is missing."""
    from bench.cli import checks as doctor_

    findings = doctor_.examine()
    for finding in findings:
        mark = "ok     " if finding.ok else "missing"
        typer.echo(f"{mark}  {finding.subject:<14}  {finding.words}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
