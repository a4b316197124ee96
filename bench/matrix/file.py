"""The matrix file, every field that a user may write; and the cells that it comes to."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from bench.backends import BACKENDS
from bench.matrix.yaml_file import Places, canonical
from bench.records.base import Frozen
from bench.records.cell import Cell, Measure, MixedPrecision, Train
from bench.records.claim import Claim
from bench.records.verdict import Goal
from bench.units import size

OWN_AXES = ("backend", "batch", "preset", "mixed_precision")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

NAME_IN_WORDS = "a letter or digit, then letters, digits, '.', '_' or '-': it becomes a folder's name"
Values = dict[str, JsonValue]


def as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _whole_size(value: Any) -> Any:
    """pydantic reads as far as it understands: 90% would be 90 bytes."""
    if isinstance(value, str) and not (re.fullmatch(_SIZE, value) and len(value) <= 30):
        raise PydanticCustomError("byte_size", "a size such as 8GiB")
    return value


def _enough(value: ByteSize) -> ByteSize:
    if 0 < value < 2**20:
        raise ValueError(f"{size(value)} is less than any model takes: say 8GiB")
    return value


def _folder_name(value: str) -> str:
    if not re.fullmatch(NAME, value):
        raise ValueError(NAME_IN_WORDS)
    return value


_NAME_SCHEMA = {"type": "string", "pattern": NAME, "maxLength": 100}
_SIZE = r"^[0-9]*\.?[0-9]+ *([kKmMgGtTpPeE]([iI]?[bB])?|[bB])?$"
_SIZE_SCHEMA = WithJsonSchema(
    {"type": ["integer", "string"], "minimum": 2**20, "maximum": 2**62, "pattern": _SIZE, "maxLength": 30}
)
Name = Annotated[str, Field(max_length=100), AfterValidator(_folder_name), WithJsonSchema(_NAME_SCHEMA)]
Batch = int | Literal["probe"]
"""A batch per rank, or the search for the largest, the best and the safe one."""
Axis = Annotated[list[JsonValue], BeforeValidator(as_list), Field(min_length=1)]
"""Its values; a single one may stand without brackets."""


class Launch(Frozen):
    """How the ranks are started."""

    num_processes: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Ranks. ``auto``: one per GPU, or two on a CPU. The backend ``single`` always has one."""
    mixed_precision: MixedPrecision = "bf16"
    memory_limit: (
        Annotated[ByteSize, Field(gt=0, le=2**62), BeforeValidator(_whole_size), AfterValidator(_enough), _SIZE_SCHEMA]
        | Literal["auto"]
    ) = "auto"
    """What one rank may allocate, such as ``8GiB``. ``auto``: all that the device has; on a CPU, where a cell of the
    matrix is searched, all its cells have what the workload names for their preset, else 3/4 of a rank's memory."""
    attempt_timeout_s: Annotated[float, Field(gt=0)] = 1800
    """An attempt that takes longer is ended and recorded as a hang."""
    hang_after_s: Annotated[float, Field(gt=0)] | None = None
    """An attempt of which no rank makes any progress for so long is ended and recorded as a hang. null: twenty of its
    longest steps, at least a minute; ten minutes before there were steps."""


class WorkloadChoice(Frozen):
    """What is trained. Any further field sets the workload's field of that name for all cells."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    name: str = "pi07"
    """A bundled workload, or ``package.module:Class`` of your own."""
    preset: str = "auto"
    """Named field values beneath all others. ``auto``: the largest that trains in the memory at hand."""

    @property
    def options(self) -> Values:
        return self.__pydantic_extra__


class MatrixFile(Frozen):
    """The matrix file as it is written."""

    name: Name
    """Names the run's folder; the file's own name unless given."""
    workload: WorkloadChoice = Field(default_factory=lambda: WorkloadChoice.model_validate({}))
    matrix: dict[str, Axis] = Field(default_factory=dict)
    """The axes: every combination of their values is measured."""
    defaults: Values = Field(default_factory=dict)
    """Values of axes that a combination does not name."""
    exclude: list[Values] = Field(default_factory=list)
    """Combinations to leave out; an entry matches all that have its values."""
    include: list[Values] = Field(default_factory=list)
    """Values to add to the combinations that they do not contradict, or combinations to add. As on GitHub Actions."""
    launch: Launch = Launch()
    measure: Measure = Measure()
    train: Train = Train()
    probe: Goal = Goal()
    """How ``batch: probe`` searches."""
    claims: list[Claim] = Field(default_factory=list)
    """What is expected; the report says of each whether it was confirmed."""

    def batches(self) -> list[JsonValue]:
        """All that are named, the search aside."""
        entries: list[Mapping[str, Any]] = [self.matrix, self.defaults, *self.include]
        named = [batch for entry in entries if "batch" in entry for batch in as_list(entry["batch"])]
        return [batch for batch in named if batch != "probe"]

    def probed(self) -> Self:
        """The same combinations, all of them at ``batch: probe``.

        An axis of batches becomes ``[probe]``. Where there is none, there must be none: alone, it would make a
        combination that each ``include`` extends in turn. An ``include`` that names a batch gets the list ``[probe]``,
        which is no value of the axis: it stays a combination of its own, and overwrites none.
        """
        include = [{**entry, "batch": ["probe"]} if "batch" in entry else entry for entry in self.include]
        if "batch" in self.matrix:
            return self.model_copy(update={"matrix": {**self.matrix, "batch": ["probe"]}, "include": include})
        return self.model_copy(update={"defaults": {**self.defaults, "batch": "probe"}, "include": include})


class Matrix(MatrixFile):
    """A validated matrix file and what `load` found out on the way."""

    def text(self) -> str:
        """The file that says what this matrix says, with the changes from the command line."""
        content = self.model_dump(mode="json", include=set(MatrixFile.model_fields), exclude_defaults=True)
        if "exclude" in content:  # what is moot for the command line's sake would be a mistake in the file
            content["exclude"] = [entry for entry in self.exclude if not self.changed.intersection(self.absent(entry))]
        for entry in (content.get("matrix", {}), content.get("defaults", {}), *content.get("include", [])):
            if "backend" in entry:
                entry["backend"] = self._with_file(entry["backend"])
        return yaml.safe_dump(content, sort_keys=False)

    def _with_file(self, backend: JsonValue) -> JsonValue:
        """As the file named it; the stored matrix lies elsewhere, so an own config's path is whole there."""
        if isinstance(backend, list):
            return [self._with_file(each) for each in backend]
        file = self.config_files.get(str(backend))
        return {"name": backend, "config_file": file} if file else backend

    def absent(self, entry: Values) -> list[str]:
        """The fields of an ``exclude`` that never have its value."""
        return [
            name
            for name, value in entry.items()
            if canonical(value) not in [canonical(listed) for listed in self.matrix.get(name, [])]
        ]

    configs: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """The content of the user's own accelerate configs, by backend name."""
    config_files: dict[str, str] = Field(default_factory=dict)
    """Where they were read, as absolute paths."""
    notes: tuple[str, ...] = ()
    """Sentences for the first lines of output."""
    changed: frozenset[str] = frozenset()
    """Axes that the command line set: an exclude that names another value of theirs is moot, not a mistake."""
    places: Places = Field(default_factory=dict)
    """Where each value was written, for errors that come up in expansion."""


class CellPlan(Frozen):
    """A cell and the batches to measure it at."""

    cell: Cell
    batches: tuple[Batch, ...]
    """Per rank; ascending, unique, ``probe`` last."""
    axes: Values
    """What names the cell to a human: the backend, then every axis in the order of the file."""

    @property
    def label(self) -> str:
        """``fsdp num_cams=1 attention=sdpa grad_ckpt=true``."""
        values = {name: v if isinstance(v, str) else json.dumps(v) for name, v in self.axes.items()}
        return " ".join(value if name == "backend" else f"{name}={value}" for name, value in values.items())


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the matrix file, for editors. It leaves a workload's own fields open."""
    own = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "config_file": {"type": "string"}},
        "required": ["name", "config_file"],
        "additionalProperties": False,
        "description": "An accelerate config of your own, relative to this file.",
    }
    batch = {
        "anyOf": [{"type": "integer", "minimum": 1}, {"const": "probe"}],
        "description": "Samples per rank and step, or the search for the largest, the best and the safe batch.",
    }
    fields: dict[str, Any] = {
        "backend": {"anyOf": [{"enum": list(BACKENDS)}, own]},
        "batch": batch,
        "preset": {"type": "string", "description": "One of the workload's presets, or auto."},
        "mixed_precision": {"enum": list(get_args(MixedPrecision))},
        **Train.model_json_schema()["properties"],
    }
    for field in fields.values():
        field.pop("default", None)
    entry = {**fields, "batch": {"anyOf": [batch, {"type": "array", "items": batch}]}}
    schema = MatrixFile.model_json_schema()
    parts = schema["properties"]
    parts["matrix"]["properties"] = {name: _axis_schema(field) for name, field in fields.items()}
    parts["matrix"]["additionalProperties"] = _axis_schema({})
    parts["defaults"]["properties"] = entry
    parts["include"]["items"]["properties"] = entry
    schema["required"] = []  # the name falls back on the file's own
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A matrix of bench"}


def _axis_schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [value, {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}]}
