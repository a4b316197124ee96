"""Reads the user's accelerate config, and rejects settings that bench would not measure as written."""

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from bench.backends import FAMILIES, SHARDING_STRATEGIES, accumulation_refused
from bench.errors import InputError, near_miss
from bench.matrix.yaml_file import Document, Key, dotted, parse, place_of, read_text, show
from bench.records.cell import MixedPrecision

DISTRIBUTED_TYPES = tuple(dict.fromkeys(family.distributed_type for family in FAMILIES.values()))
ACCUMULATION = "gradient_accumulation_steps"
_FALSE = ("false", "no", "none")
_CKPT = "leave it out; set grad_ckpt: true in the matrix, if the workload has this field"

Content = dict[str, JsonValue]


def read(path: Path, where: str | None, *, of_script: bool = False) -> Content:
    """The config's content. If it names a DeepSpeed JSON file, the content of that file replaces the path.

    Args:
        path: a YAML or JSON file as ``accelerate config`` writes it.
        where: the place that names this file; part of the error when the file does not exist.
        of_script: a script trains as the config says. bench only has to know how many ranks there are.

    Raises:
        InputError: the file is unreadable, is not a mapping, or has settings that bench does not measure.
    """
    if not path.is_file():
        raise InputError(f"the accelerate config {str(path)!r} does not exist", where=where, field="config_file")
    document = _read_document(path)
    content = _mapping(document, ())
    _one_of(document, ("compute_environment",), ("LOCAL_MACHINE",), "LOCAL_MACHINE")
    several = "leave it out; `bench run MATRIX --launcher slurm --nodes 2` spreads the ranks over machines"
    _one_of(document, ("num_machines",), (1,), 1, several)
    if not of_script:
        _one_of(document, ("mixed_precision",), ("bf16", "no"), "no")
    if content.get("distributed_type") == "MULTI_CPU":
        raise InputError(
            "'MULTI_CPU' silently starts only one process on a single machine",
            where=place_of(document.places, ("distributed_type",)),
            field="distributed_type",
            fix="use MULTI_GPU: bench runs it on the CPU when there is no GPU",
        )
    if of_script:
        return _as_written(content, path.parent, where)
    _one_of(document, ("distributed_type",), DISTRIBUTED_TYPES, "NO")
    _refuse_accumulation(document, (ACCUMULATION,))
    if content.get("parallelism_config"):
        raise InputError(
            "bench does not measure context, tensor or pipeline parallelism: ranks would share samples, and throughput"
            " would count those samples twice",
            where=place_of(document.places, ("parallelism_config",)),
            field="parallelism_config",
            fix="leave it out",
        )
    what = "selecting GPUs here is refused: bench plans ranks and memory for all the GPUs that it sees"
    _refuse(document, ("gpu_ids",), what, ("all", "none"), "leave it out; set CUDA_VISIBLE_DEVICES for bench itself")
    _refuse_compilation(document)
    fsdp, deepspeed = ("fsdp_config",), ("deepspeed_config",)
    if "fsdp_config" in content:
        _mapping(document, fsdp)
        _one_of(document, (*fsdp, "fsdp_version"), (1, 2), 1)
        _strategy_of_version_1(_mapping(document, fsdp))
        what = "activation checkpointing belongs in the matrix: results would not record it here"
        _refuse(document, (*fsdp, "fsdp_activation_checkpointing"), what, _FALSE, _CKPT)
        _one_of(document, (*fsdp, "fsdp_sharding_strategy"), (*SHARDING_STRATEGIES, 1, 2, 3, 4, 5), "FULL_SHARD")
    if "deepspeed_config" in content:
        engine = _mapping(document, deepspeed)
        _one_of(document, (*deepspeed, "zero_stage"), (0, 1, 2, 3), 2)
        _refuse_accumulation(document, (*deepspeed, ACCUMULATION))
        if "deepspeed_config_file" in engine:
            file = engine["deepspeed_config_file"]
            place = place_of(document.places, (*deepspeed, "deepspeed_config_file"))
            engine["deepspeed_config_file"] = _read_deepspeed(file, path.parent, place)
    return content


def _as_written(content: Content, folder: Path, where: str | None) -> Content:
    """The config of a script, with the content of a DeepSpeed file in the place of its path."""
    engine = content.get("deepspeed_config")
    if isinstance(engine, dict) and isinstance(engine.get("deepspeed_config_file"), str):
        engine["deepspeed_config_file"] = _mapping(
            _read_document(_deepspeed_path(engine["deepspeed_config_file"], folder, where)), ()
        )
    return content


def written_precision(content: Content) -> str:
    """The precision that a script's config names, whatever it is."""
    return str(content.get("mixed_precision", mixed_precision(content)))


def mixed_precision(content: Content) -> MixedPrecision:
    """The config's precision. A DeepSpeed JSON that enables bf16 takes precedence over accelerate's own field."""
    engine: Any = content.get("deepspeed_config", {})
    deepspeed_json = engine.get("deepspeed_config_file", {}) if isinstance(engine, dict) else {}
    bf16 = deepspeed_json.get("bf16", {}) if isinstance(deepspeed_json, dict) else {}
    enabled = isinstance(bf16, dict) and bf16.get("enabled") is True
    return "bf16" if enabled or content.get("mixed_precision") == "bf16" else "no"


def _read_deepspeed(file: JsonValue, folder: Path, place: str | None) -> Content:
    path = _deepspeed_path(file, folder, place)
    document = _read_document(path)
    content = _mapping(document, ())
    _refuse_accumulation(document, (ACCUMULATION,))
    if "zero_optimization" in content:
        _mapping(document, ("zero_optimization",))
        _one_of(document, ("zero_optimization", "stage"), (0, 1, 2, 3), 0)
    if "fp16" in content and _mapping(document, ("fp16",)).get("enabled", False) is not False:
        raise InputError(
            "fp16 is not supported", where=str(path), field="fp16.enabled", allowed="bf16, or neither of the two"
        )
    if "torch_autocast" in content:
        _mapping(document, ("torch_autocast",))
        what = "autocast is refused: it hides the dtype of the arithmetic"
        _refuse(document, ("torch_autocast", "enabled"), what, _FALSE, "mixed_precision: bf16, or bf16.enabled here")
    return content


def _deepspeed_path(file: JsonValue, folder: Path, place: str | None) -> Path:
    field = "deepspeed_config.deepspeed_config_file"
    if not isinstance(file, str):
        raise InputError(f"{show(file)} cannot be used", where=place, field=field, allowed="the path of a JSON file")
    path = next((path for path in (folder / file, Path(file)) if path.is_file()), None)
    if path is None:
        raise InputError(f"the DeepSpeed config {file!r} does not exist", where=place, field=field)
    return path


def _read_document(path: Path) -> Document:
    if path.suffix != ".json":
        text = read_text(path)
        return parse(text, lambda line: f"{path}:{line + 1}", str(path))
    text = read_text(path)
    try:
        return Document(json.loads(text, parse_constant=_refuse_constant), {(): str(path)})
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", where=str(path)) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _at(document: Document, key: Key, default: JsonValue = None) -> JsonValue:
    value: Any = document.data
    for part in key:
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value  # type: ignore[no-any-return]


def _mapping(document: Document, key: Key) -> Content:
    value = _at(document, key)
    if not isinstance(value, dict):
        raise InputError(
            f"{show(value)} cannot be used",
            where=place_of(document.places, key),
            field=dotted(key) or None,
            allowed="a mapping of fields to values",
        )
    return value


def _strategy_of_version_1(fsdp: dict[str, Any]) -> None:
    """`accelerate config` writes version 1's strategy in a field of version 2; its launcher then uses FULL_SHARD."""
    strategy = fsdp.get("fsdp_reshard_after_forward")
    if fsdp.get("fsdp_version", 1) == 1 and isinstance(strategy, str) and strategy in SHARDING_STRATEGIES:
        fsdp.setdefault("fsdp_sharding_strategy", strategy)


def _one_of(
    document: Document, key: Key, allowed: tuple[JsonValue, ...], default: JsonValue, fix: str | None = None
) -> None:
    value = _at(document, key, default)
    if isinstance(value, bool | float) or value not in allowed:
        words = [str(word) for word in allowed]
        raise InputError(
            f"{show(value)} is not supported",
            where=place_of(document.places, key),
            field=dotted(key),
            allowed=words,
            fix=fix or near_miss(value, words),
        )


def _refuse(document: Document, key: Key, what: str, off: tuple[str, ...], fix: str) -> None:
    """Raises InputError unless the setting is absent or has one of the values ``off``."""
    value = _at(document, key, off[0])
    if str(value).lower() not in off:
        raise InputError(
            f"{show(value)}: {what}",
            where=place_of(document.places, key),
            field=dotted(key),
            allowed=off[0],
            fix=fix,
        )


def _refuse_compilation(document: Document) -> None:
    """accelerate would compile the whole model in `prepare`, and the wrapper hides how the model is sharded."""
    what = "compilation belongs in the matrix: results would not record it here"
    fix = "leave it out; set train.compile: unit"
    for key in (("dynamo_backend",), ("dynamo_config", "dynamo_backend")):
        _refuse(document, key, what, ("no", "false", "none"), fix)


def _refuse_accumulation(document: Document, key: Key) -> None:
    value = _at(document, key, "1")
    if str(value).lower() not in ("1", "1.0", "auto"):
        raise accumulation_refused(show(value), place_of(document.places, key), dotted(key))
