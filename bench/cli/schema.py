"""`bench schema`: the JSON Schema of what bench reads and writes."""

import json
from typing import Annotated, Literal

import typer


def schema(
    of: Annotated[Literal["matrix", "result"], typer.Argument(help="A matrix file, or a stored result.json.")],
) -> None:
    """Print the JSON Schema of a matrix file or a stored result.

    Editors use it to complete and check a matrix; other programs use it to read results.
    """
    from bench import matrix
    from bench.records.outcome import Result

    content = matrix.json_schema() if of == "matrix" else Result.model_json_schema()
    typer.echo(json.dumps(content, indent=2))
