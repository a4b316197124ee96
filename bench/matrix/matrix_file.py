"""The matrix file: every field that a user may write, its JSON Schema, and the plan of a cell."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from bench.backends import BACKENDS
from bench.matrix.yaml_file import Places, canonical, dump
from bench.records.base import Frozen
from bench.records.cell import Measure, Train
from bench.records.claim import Claim
from bench.records.precision import PRECISIONS, MixedPrecision
from bench.records.slurm import Slurm
from bench.records.verdict import Goal
from bench.units import size

OWN_AXES = ("backend", "batch", "preset", "mixed_precision")
_LETTERS = r"A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0370-\u1fff\u3040-\ud7ff"
NAME = rf"^[{_LETTERS}][{_LETTERS}._-]*$"
"""For Python and for the editors that read the JSON Schema: letters of most languages."""
NAME_IN_WORDS = "a letter or a digit, then letters, digits, '.', '_' or '-': it becomes a folder's name"
Values = dict[str, JsonValue]


def as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _whole_size(value: Any) -> Any:
    """pydantic ignores what follows a size: it would read 90% as 90 bytes."""
    if isinstance(value, str) and not (re.fullmatch(_SIZE, value) and len(value) <= 30):
        raise PydanticCustomError("byte_size", "a size such as 8GiB")
    return value


def _enough(value: ByteSize) -> ByteSize:
    if 0 < value < 2**20:
        raise ValueError(f"{size(value)} is less than any model needs: try 8GiB")
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
Axis = Annotated[list[JsonValue], BeforeValidator(as_list), Field(min_length=1)]
"""The values of an axis; a single value needs no brackets."""


class Launch(Frozen):
    """How the ranks are started."""

    num_processes: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Number of ranks. ``auto``: one per GPU, or on CPUs two, but at least one per
    node. The backend ``single`` always has one."""
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Nodes of a job. The ranks of a cell are spread evenly over them. The backend ``single`` uses one."""
    mixed_precision: MixedPrecision = "bf16"
    memory_limit: (
        Annotated[ByteSize, Field(gt=0, le=2**62), BeforeValidator(_whole_size), AfterValidator(_enough), _SIZE_SCHEMA]
        | Literal["auto"]
    ) = "auto"
    """Memory that one rank may allocate, such as ``8GiB``. ``auto``: no limit. On a CPU, if any cell of the matrix is
    searched, ``auto`` limits all its cells: to the workload's value for their preset, or 3/4 of a rank's share."""
    attempt_timeout_s: Annotated[float, Field(gt=0)] = 1800
    """bench ends an attempt that takes longer, and records a hang."""
    hang_after_s: Annotated[float, Field(gt=0)] | None = None
    """bench ends an attempt when no rank makes progress for this long, and records a hang. null: twenty times the
    longest step, but at least a minute; ten minutes before the first step."""


class Measuring(Measure):
    """How a cell is measured, and how often."""

    launches: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = "auto"
    """How often each attempt is launched, in fresh processes. ``auto``: once, and then ``bench run`` launches again
    what the decision needs: the recommended setting, its runner-up, and what is too close to call with it. A number:
    so often and no more. The launches of all cells take turns, in an order drawn anew for each round. Launches added
    later do not change what is stored."""


DEFAULT_WORKLOAD = "pi07"
"""Of a matrix that names none: the bundled policy."""


class WorkloadChoice(Frozen):
    """What to train. Any other field sets the workload's field of that name for all cells."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    name: str = DEFAULT_WORKLOAD
    """A bundled workload, or your own: ``package.module:name`` or ``./file.py:name`` of a class or a function."""
    preset: str = "auto"
    """Named field values, which all others override. ``auto``: the largest preset that fits in the memory."""

    @property
    def options(self) -> Values:
        return self.__pydantic_extra__


class MatrixFile(Frozen):
    """The matrix file as written."""

    name: Name
    """Name of the run's folder. Default: the name of the file."""
    workload: WorkloadChoice = Field(default_factory=lambda: WorkloadChoice.model_validate({}))
    workload_folder: str | None = None
    """Where your own workload is looked for, before the current folder. Relative to this file; null: its folder."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Instead of a workload: the program to measure and its arguments. ``{batch}``, ``{out}`` and the name of any axis
    in braces are replaced; `bench guide script-results` lists them. No shell is involved."""
    result: dict[str, str] = Field(default_factory=dict)
    """Of a command: its key of each figure, such as ``step_time_ms: timing.step``, in the JSON that it writes; or
    ``regex:`` and a pattern with a group, for its output. Without it and ``{out}``, bench observes the script."""
    units: list[str] = Field(default_factory=list)
    """Of a command: class names of the modules that FSDP shards, each as one unit."""
    folder: str = "."
    """Of a command: the folder in which it runs, relative to this file."""
    matrix: dict[str, Axis] = Field(default_factory=dict)
    """The axes. bench measures every combination of their values."""
    defaults: Values = Field(default_factory=dict)
    """Values for the axes that a combination does not set."""
    exclude: list[Values] = Field(default_factory=list)
    """Combinations to leave out. An entry matches every combination that has its values."""
    include: list[Values] = Field(default_factory=list)
    """Values to add to the combinations that they do not contradict, or new combinations, as in GitHub Actions."""
    launch: Launch = Launch()
    slurm: Slurm = Slurm()
    """With ``--launcher slurm``: the job to ask for."""
    measure: Measuring = Measuring()
    train: Train = Train()
    probe: Goal = Goal()
    """How ``batch: probe`` searches."""
    choices: list[str] = Field(default_factory=list)
    """Axes of which the report picks the best value. It gives one answer for each combination of the other axes, which
    are requirements. Default: the backend, and the switches that change how a step is computed and not its result."""
    claims: list[Claim] = Field(default_factory=list)
    """What you expect of the results. The report says whether each claim is confirmed."""

    def batches(self) -> list[JsonValue]:
        """All batches in the file, without ``probe``."""
        return [batch for batch in self.values_of("batch") if batch != "probe"]

    @classmethod
    def fix_for_axis(cls, name: str) -> str | None:
        """A fix for an axis with the path of its field, as ``train.accumulate``, and for one that is a setting of the
        whole run: ``num_processes``, or ``launch.num_processes``."""
        path, _, own = name.rpartition(".")
        if path in cls.model_fields and own in (*OWN_AXES, *Train.model_fields):
            return f"write {own}"
        for section, field in cls.model_fields.items():
            if name.removeprefix(f"{section}.") in getattr(field.annotation, "model_fields", ()):
                return f"set it under `{section}:`; for several values, make a run of each, and `bench report` them all"
        return None

    def values_of(self, axis: str) -> list[JsonValue]:
        """All values in the file of an axis."""
        entries: list[Mapping[str, Any]] = [self.matrix, self.defaults, *self.include]
        return [value for entry in entries if axis in entry for value in as_list(entry[axis])]

    def probed(self) -> Self:
        """The same combinations, all of them at ``batch: probe``.

        A batch axis becomes ``[probe]``. If there is no batch axis, ``defaults`` sets the batch instead: a new axis
        would create a combination for every ``include`` to extend. An ``include`` that sets a batch gets the list
        ``[probe]``, which differs from the axis value ``probe``, so it stays a separate combination.
        """
        include = [{**entry, "batch": ["probe"]} if "batch" in entry else entry for entry in self.include]
        if "batch" in self.matrix:
            return self.model_copy(update={"matrix": {**self.matrix, "batch": ["probe"]}, "include": include})
        return self.model_copy(update={"defaults": {**self.defaults, "batch": "probe"}, "include": include})


def _path_from(folder: Path | None, path: str) -> str:
    here = Path.cwd().resolve()
    if folder is None or not all(place.resolve().is_relative_to(here) for place in (folder, Path(path))):
        return path
    return os.path.relpath(Path(path).resolve(), folder.resolve())


class Matrix(MatrixFile):
    """A validated matrix file, with what `load` has read and resolved for it."""

    def text(self, folder: Path | None = None) -> str:
        """A matrix file with the content of this matrix, including the changes from the command line.

        Args:
            folder: where the file will be. Paths are absolute, but for those from it to another place in the current
                folder: a checkout with runs may move.
        """
        content = self.model_dump(mode="json", include=set(MatrixFile.model_fields), exclude_defaults=True)
        content["measure"] = self.measure.model_dump(mode="json", exclude_unset=True)  # defaults depend on the device
        if "mixed_precision" in self.launch.model_fields_set:  # an own config may take it, and no default
            content["launch"] = {**content.get("launch", {}), "mixed_precision": self.launch.mixed_precision}
        if "exclude" in content:  # an entry that the command line made moot would be an error in the file
            content["exclude"] = [entry for entry in self.exclude if not self.changed.intersection(self.absent(entry))]
        for entry in (content.get("matrix", {}), content.get("defaults", {}), *content.get("include", [])):
            if "backend" in entry:
                entry["backend"] = self._with_file(entry["backend"], folder)
        content |= {
            name: _path_from(folder, content[name]) for name in ("workload_folder", "folder") if name in content
        }
        return dump(content)

    def _with_file(self, backend: JsonValue, folder: Path | None) -> JsonValue:
        """The backend as the file wrote it, but with the path of its config as `text` gives it."""
        if isinstance(backend, list):
            return [self._with_file(each, folder) for each in backend]
        file = self.config_files.get(str(backend))
        return {"name": backend, "config_file": _path_from(folder, file)} if file else backend

    def absent(self, entry: Values) -> list[str]:
        """The fields of an ``exclude`` entry whose axis does not have the entry's value."""
        return [
            name
            for name, value in entry.items()
            if canonical(value) not in [canonical(listed) for listed in self.matrix.get(name, [])]
        ]

    configs: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """The content of the user's accelerate configs, by backend name."""
    config_files: dict[str, str] = Field(default_factory=dict)
    """Absolute paths of these configs."""
    notes: tuple[str, ...] = ()
    """Notes for the first lines of output."""
    changed: frozenset[str] = frozenset()
    """Axes that the command line set. An ``exclude`` with another value of such an axis is moot, not an error."""
    places: Places = Field(default_factory=dict)
    """Where each value was written, for error messages of the expansion."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the matrix file, for editors. It does not restrict the fields of a workload."""
    user_config = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "config_file": {"type": "string"}},
        "required": ["name", "config_file"],
        "additionalProperties": False,
        "description": "Your own accelerate config; its path is relative to this file.",
    }
    batch = {
        "anyOf": [{"type": "integer", "minimum": 1}, {"const": "probe"}],
        "description": "Samples per rank and step; probe searches for the largest, the best and the safe batch.",
    }
    fields: dict[str, Any] = {
        "backend": {"anyOf": [{"enum": list(BACKENDS)}, user_config]},
        "batch": batch,
        "preset": {"type": "string", "description": "One of the workload's presets, or auto."},
        "mixed_precision": {"enum": list(PRECISIONS)},
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
    parts["choices"]["uniqueItems"] = True
    schema["required"] = []  # the name defaults to the name of the file
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A matrix of bench"}


def _axis_schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [value, {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}]}
