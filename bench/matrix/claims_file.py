"""Reads claims from a matrix file or from a separate file."""

from pathlib import Path

from pydantic import JsonValue

from bench.errors import InputError
from bench.matrix import yaml_file
from bench.matrix.validation import validate
from bench.matrix.yaml_file import place_of, show
from bench.records.base import Frozen
from bench.records.claim import Claim


class _ClaimsFile(Frozen):
    claims: list[Claim]


def read(path: Path) -> tuple[Claim, ...]:
    """The claims in a file: a list of claims, a mapping with the field ``claims``, or a matrix file.

    Raises:
        InputError: the file cannot be read, or a claim is not valid.
    """
    document = yaml_file.read(path)
    data, above = document.data, 0
    if isinstance(data, list):
        data, above = {"claims": data}, 1
    if not isinstance(data, dict):
        problem = "is empty" if data is None else f"holds {show(data)} at its top level"
        raise InputError(problem, where=str(path), allowed="a list of claims, or a mapping with the field claims")
    of_matrix = "matrix" in data or "name" in data
    content: dict[str, JsonValue] = {"claims": data.get("claims", [])} if of_matrix else dict(data)
    file = validate(
        _ClaimsFile,
        content,
        lambda key: (key[above:], place_of(document.places, key[above:])),
        lambda name: yaml_file.suggest(name, Claim.model_fields),
    )
    return tuple(file.claims)
