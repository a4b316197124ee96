"""Reads the user's own devices to plan for."""

from pathlib import Path

from pydantic import Field

from bench.errors import InputError
from bench.matrix import yaml_file
from bench.matrix.validation import validate
from bench.matrix.yaml_file import place_of, refusal
from bench.records.base import Frozen, Positive
from bench.records.devices import DeviceSpec
from bench.units import quantity


def memory_bytes(text: str) -> int:
    """``80GiB`` in bytes.

    Raises:
        ValueError: not such a size, or none that a device can have.
    """
    size = quantity(text, "bytes")[0]
    if not 2**20 <= size <= 2**50:
        raise ValueError(f"{text!r} is not the memory of a device: such as 80GiB")
    return round(size)


class _Entry(Frozen):
    memory: str
    """Such as 80GiB."""
    bf16_flops_per_s: Positive | None = None
    fp32_flops_per_s: Positive | None = None
    bandwidth_bytes_per_s: Positive | None = None
    link_bytes_per_s: Positive | None = None
    source: str = "a file of the user"


class _File(Frozen):
    devices: dict[str, _Entry] = Field(min_length=1)


def read(path: Path) -> dict[str, DeviceSpec]:
    """The devices in a file, by name.

    Raises:
        InputError: the file cannot be read, or a device is not valid.
    """
    document = yaml_file.read(path)
    if not isinstance(document.data, dict):
        raise InputError("holds no devices", where=str(path), fix="devices: {mine: {memory: 80GiB}}")
    file = validate(
        _File,
        dict(document.data),
        lambda key: (key, place_of(document.places, key)),
        lambda name: yaml_file.suggest(name, _Entry.model_fields),
    )
    found = {}
    for name, entry in file.devices.items():
        try:
            memory = memory_bytes(entry.memory)
        except ValueError as error:
            raise refusal(str(error), document.places, ("devices", name, "memory")) from error
        rates = entry.model_dump(exclude={"memory"})
        found[name] = DeviceSpec(name=name, memory_bytes=memory, **rates)
    return found
