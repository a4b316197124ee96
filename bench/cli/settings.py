"""Options that set fields of a matrix, made from these fields: their names, types, defaults and descriptions."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from bench.matrix.matrix_file import Launch
from bench.records.slurm import Slurm
from bench.records.verdict import Goal

SEARCH = ("probe.max_batch", "launch.memory_limit", "probe.granularity", "probe.tolerance", "probe.headroom")
JOB = ("launch.nodes", *(f"slurm.{name}" for name in Slurm.model_fields))
_SECTIONS: Final[dict[str, type[BaseModel]]] = {"launch": Launch, "probe": Goal, "slurm": Slurm}


def sets(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these fields, such as ``--max-batch`` for ``probe.max_batch``. The command
    takes them as ``**settings``; `overrides` reads these."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *map(_option, keys)])  # type: ignore[attr-defined]
        return command

    return decorate


def overrides(settings: Mapping[str, object]) -> dict[str, str]:
    """Of each option that was given, the override of the matrix and the option: ``launch.nodes=2``, ``--nodes 2``."""
    keys = {key.partition(".")[2]: key for key in (*SEARCH, *JOB)}
    return {
        f"{keys[name]}={_yaml(keys[name], value)}": f"--{name.replace('_', '-')} {_words(value)}"
        for name, value in settings.items()
        if value is not None
    }


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _yaml(key: str, value: Any) -> str:
    """A field that takes text gets text: YAML would read the time 2:00:00 as a number."""
    types = _types(_field(key))
    return value if isinstance(value, str) and ("string" not in types or "number" in types) else json.dumps(value)


def _option(key: str) -> inspect.Parameter:
    field, name = _field(key), key.partition(".")[2]
    types, word, default = _types(field), name.replace("_", "-"), field.get("default")
    flag, many = types == {"boolean"}, types == {"array"}
    text = " ".join(str(field["description"]).replace("``", "").split()) + " May be repeated." * many
    if not many and not flag and default is not None:
        text += f"  [default: {default}]"
    option = typer.Option(
        f"--{word}/--no-{word}" if flag else f"--{word}",
        metavar=None if flag else "TEXT" if many else "N" if types == {"integer"} else "VALUE",
        help=text,
        show_default=False,
        rich_help_panel="Search" if key in SEARCH else "Where",
    )
    kind: Any = bool if flag else list[str] if many else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _field(key: str) -> dict[str, Any]:
    """The JSON Schema of a field."""
    section, _, name = key.partition(".")
    field: dict[str, Any] = _SECTIONS[section].model_json_schema()["properties"][name]
    return field


def _types(field: Mapping[str, Any]) -> set[str]:
    """The JSON types that a field takes, null apart."""
    parts = field.get("anyOf", [field])
    types = [part.get("type", "string") for part in parts]  # a constant is text
    return {name for each in types for name in ([each] if isinstance(each, str) else each)} - {"null"}
