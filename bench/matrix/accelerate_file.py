"""Reads the user's accelerate config, and rejects settings that bench would not measure as written."""

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import JsonValue

from bench.backends import (
    FAMILIES,
    SHARDING_STRATEGIES,
    Family,
    from_accelerate_config,
    own_precision,
)
from bench.errors import InputError, near_miss
from bench.matrix import accelerate_keys as keys
from bench.matrix import step_batches
from bench.matrix.yaml_file import Document, Key, dotted, parse, parse_json, place_of, read_text, refusal, show
from bench.records.precision import PRECISIONS
from bench.records.script import MICRO_BATCHES

DISTRIBUTED_TYPES = tuple(dict.fromkeys(family.distributed_type for family in FAMILIES.values()))
_FALSE = ("false", "no", "none")
_NO_NVME = "bench measures offload to the host's memory, not to NVMe"
_CLASSES = "fsdp_transformer_layer_cls_to_wrap"
_CKPT = "leave it out; set grad_ckpt: true in the matrix, if the workload has this field"

Content = dict[str, JsonValue]


class UserConfig(NamedTuple):
    """A user's accelerate config."""

    content: Content
    """If it names a DeepSpeed JSON file, the content of that file replaces the path."""
    notes: tuple[str, ...]
    """What accelerate ignores of it, a sentence for each key."""
    file: str
    """Its absolute path, without following links: a DeepSpeed config that it names is beside it."""


def read(path: Path, where: str | None, *, of_script: bool = False) -> UserConfig:
    """Reads a user's accelerate config.

    Args:
        path: a YAML or JSON file as ``accelerate config`` writes it.
        where: the place that names this file; part of the error when the file does not exist.
        of_script: a script trains as the config says. bench only has to know how many ranks there are.

    Raises:
        InputError: the file is unreadable, is not a mapping, or has settings that accelerate rejects or that bench does
            not measure.
    """
    if not path.is_file():
        raise InputError(f"the accelerate config {str(path)!r} does not exist", where=where, field="config_file")
    document = _read_document(path)
    content = _mapping(document, ())
    _known(document, (), keys.TOP, "accelerate rejects it")
    _one_of(document, ("compute_environment",), ("LOCAL_MACHINE",), "LOCAL_MACHINE")
    several = "leave it out; `bench run MATRIX --launcher slurm --nodes 2` spreads the ranks over machines"
    _one_of(document, ("num_machines",), (1,), 1, several)
    if not of_script:
        _one_of(document, ("mixed_precision",), (*PRECISIONS, None), "no")
        _refuse(document, ("fp16",), "is the old name of mixed_precision", _FALSE, "leave it out; set mixed_precision")
        if "distributed_type" not in content:
            where, allowed = str(path), list(DISTRIBUTED_TYPES)
            raise InputError("is required by accelerate", where=where, field="distributed_type", allowed=allowed)
    if content.get("distributed_type") == "MULTI_CPU":
        raise refusal(
            "'MULTI_CPU' silently starts only one process on a single machine",
            document.places,
            ("distributed_type",),
            fix="use MULTI_GPU: bench runs it on the CPU when there is no GPU",
        )
    _mapping_if_any(document, ("fsdp_config",))
    _one_of(document, ("fsdp_config", "fsdp_version"), (1, 2, "1", "2"), 1)
    key = ("fsdp_config", "fsdp_sharding_strategy")
    if str(_at(document, key, "NONE")).upper() not in (*SHARDING_STRATEGIES, *"12345", "NONE"):
        _one_of(document, key, (*SHARDING_STRATEGIES, *"12345"), None)
    if of_script:
        return UserConfig(_as_written(content, path.parent, where), (), str(path.absolute()))
    _one_of(document, ("distributed_type",), DISTRIBUTED_TYPES, None)
    what = "selecting GPUs here is refused: bench plans ranks and memory for all the GPUs that it sees"
    _refuse(document, ("gpu_ids",), what, ("all", "none"), "leave it out; set CUDA_VISIBLE_DEVICES for bench itself")
    what = "bench starts its own ranks, not mpirun"
    _refuse(document, ("mpirun_config", "mpirun_hostfile"), what, _FALSE, "leave it out")
    _refuse_compilation(document)
    _with_prefixes(document)
    ignored = {key for keyed in keys.IGNORED_FSDP.values() for key in keyed}
    for name, known in (("fsdp_config", keys.FSDP | ignored), ("deepspeed_config", keys.DEEPSPEED)):
        _mapping_if_any(document, (name,))
        _known(document, (name,), known, "accelerate would ignore it without a word")
    family = from_accelerate_config({**content, "deepspeed_config": {}}).family
    _check_parallelism(document)
    if family in ("fsdp", "fsdp2"):
        _check_fsdp(document)
    if family == "deepspeed":
        _check_deepspeed(document, path)
    return UserConfig(content, tuple(_ignored(document, family)), str(path.absolute()))


def _with_prefixes(document: Document) -> None:
    """accelerate reads ``version`` in fsdp_config as ``fsdp_version``."""
    section = _mapping_if_any(document, ("fsdp_config",))
    for name in [name for name in section if not name.startswith(("fsdp", "_"))]:
        section[f"fsdp_{name}"] = section.pop(name)
        document.places[("fsdp_config", f"fsdp_{name}")] = str(place_of(document.places, ("fsdp_config", name)))


def _check_parallelism(document: Document) -> None:
    section = ("parallelism_config",)
    _mapping_if_any(document, section)
    _known(document, section, keys.PARALLELISM, "accelerate would ignore it without a word")
    for dimension, what in (("tp", "tensor"), ("cp", "context"), ("sp", "sequence")):
        key = (*section, f"parallelism_config_{dimension}_size")
        if (size := _at(document, key, 1)) != 1:
            raise refusal(
                f"{show(size)}: bench does not measure {what} parallelism: ranks would share samples, and throughput"
                " would count those samples twice",
                document.places,
                key,
                allowed="1",
                fix="leave it out; the sizes dp_replicate and dp_shard are measured",
            )
    for dimension in ("dp_replicate", "dp_shard"):
        key = (*section, f"parallelism_config_{dimension}_size")
        size = _at(document, key, 1)
        if type(size) is not int or size < 1:
            raise refusal(f"{show(size)} is not supported", document.places, key, allowed="a whole number, at least 1")


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
    return str(content.get("mixed_precision") or own_precision(content, None))


def _check_fsdp(document: Document) -> None:
    section = ("fsdp_config",)
    what = "activation checkpointing belongs in the matrix: results would not record it here"
    for name in ("fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload"):
        _refuse(document, (*section, name), what, _FALSE, _CKPT)
    for name, values in keys.FSDP_VALUES.items():
        if str(_at(document, (*section, name), values[0])).upper() not in (*values, "NONE"):
            _one_of(document, (*section, name), values, None)
    for name in keys.FSDP_SWITCHES:
        if str(value := _at(document, (*section, name), False)).lower() not in keys.TRUTHS:
            raise refusal(
                f"{show(value)} is neither true nor false: ranks fail once they have started",
                document.places,
                (*section, name),
                allowed="true or false",
            )
    if float(str(_at(document, (*section, "fsdp_version"), 1))) == 2:
        key = (*section, "fsdp_reshard_after_forward")
        if str(value := _at(document, key, True)).lower() not in ("true", "false"):
            raise refusal(f"{show(value)} fails with fsdp_version 2", document.places, key, allowed="true or false")


def _check_deepspeed(document: Document, path: Path) -> None:
    section = ("deepspeed_config",)
    given = _mapping_if_any(document, section)
    if "deepspeed_config_file" in given:
        for key in (*((*section, name) for name in keys.BESIDE_NO_FILE), ("mixed_precision",)):
            if _at(document, key) is not None:
                raise refusal(
                    "accelerate rejects this field beside deepspeed_config_file",
                    document.places,
                    key,
                    fix="leave it out, and set launch.mixed_precision in the matrix or bf16.enabled in the JSON file"
                    if key == ("mixed_precision",)
                    else "leave it out, and set it in the JSON file",
                )
        place = place_of(document.places, (*section, "deepspeed_config_file"))
        given["deepspeed_config_file"] = _read_deepspeed(given["deepspeed_config_file"], path.parent, place)
        return
    _one_of(document, (*section, "zero_stage"), (0, 1, 2, 3), 2)
    key = (*section, MICRO_BATCHES)
    step_batches.check_written(_at(document, key, 1), document.places, key)
    _number_or_auto(document, (*section, "gradient_clipping"))
    for part in ("optimizer", "param"):
        _one_of(document, (*section, f"offload_{part}_device"), ("none", "cpu", None), "none", _NO_NVME)


def _ignored(document: Document, family: Family) -> Iterator[str]:
    """What accelerate does not read of a config, a sentence for each key with its place."""
    content = _mapping(document, ())
    sections = {"fsdp_config": ("fsdp", "fsdp2"), "deepspeed_config": ("deepspeed",)}
    reasons = dict(keys.IGNORED_TOP)
    reasons |= dict.fromkeys(sections, f"distributed_type is {content['distributed_type']}")
    reasons |= {"parallelism_config": "one process has nothing to share"} if family == "single" else {}
    for name, reason in reasons.items():
        if str(content.get(name) or "no").lower() not in _FALSE and family not in sections.get(name, ()):
            yield _is_ignored(document, (name,), "", reason)
    if family not in ("fsdp", "fsdp2"):
        return
    section, version = _mapping_if_any(document, ("fsdp_config",)), 2 if family == "fsdp2" else 1
    policy = str(section.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    for name in section:
        if name in keys.IGNORED_FSDP[family]:
            yield _is_ignored(
                document, ("fsdp_config", name), f" with fsdp_version {version}", keys.IGNORED_FSDP[family][name]
            )
        elif section[name] and policy != keys.WRAPS_BY.get(name, policy):
            wants = f"fsdp_auto_wrap_policy: {keys.WRAPS_BY[name]} reads it, and the policy is {policy}"
            yield _is_ignored(document, ("fsdp_config", name), "", wants)
    if policy == "TRANSFORMER_BASED_WRAP" and not section.get(_CLASSES):
        yield (
            f"{place_of(document.places, ('fsdp_config',))}: no {_CLASSES}: accelerate shards the classes that the"
            " model's _no_split_modules names, or, without any, the whole model as one unit"
        )


def _is_ignored(document: Document, key: Key, when: str, reason: str) -> str:
    return f"{place_of(document.places, key)}: accelerate ignores {dotted(key)}{when}: {reason}"


def _read_deepspeed(file: JsonValue, folder: Path, place: str | None) -> Content:
    path = _deepspeed_path(file, folder, place)
    document = _read_document(path)
    content = _mapping(document, ())
    _known(document, (), keys.ENGINE, "DeepSpeed would ignore it without a word")
    if "zero_optimization" not in content:
        fix = 'add "zero_optimization": {"stage": 2}'
        raise InputError("accelerate requires this field", where=str(path), field="zero_optimization", fix=fix)
    zero: Key = ("zero_optimization",)
    for name in ("bf16", "fp16", "optimizer", "scheduler", "torch_autocast", "zero_optimization"):
        _mapping_if_any(document, (name,))
    _known(document, zero, keys.ZERO, "DeepSpeed rejects it, once the ranks have started")
    step_batches.check_written(_at(document, (MICRO_BATCHES,), 1), document.places, (MICRO_BATCHES,), "auto")
    _one_of(document, (*zero, "stage"), (0, 1, 2, 3, "auto"), 0)
    for part in ("optimizer", "param"):
        _mapping_if_any(document, (*zero, f"offload_{part}"))
        _one_of(document, (*zero, f"offload_{part}", "device"), ("none", "cpu", "auto"), "none", _NO_NVME)
    _one_of(document, ("bf16", "enabled"), ("auto", True, False), False)
    if _at(document, ("fp16", "enabled"), False) not in (False, "auto"):
        what = "fp16 is not supported in a DeepSpeed file"
        raise refusal(what, document.places, ("fp16", "enabled"), allowed="bf16, or neither of the two")
    for name in ("optimizer", "scheduler"):
        if name in content and not isinstance(_mapping(document, (name,)).get("type"), str):
            raise InputError(
                "DeepSpeed needs its type",
                where=place_of(document.places, (name,)),
                field=f"{name}.type",
                allowed="the name of one of DeepSpeed's, such as AdamW or WarmupLR",
                fix=f"or leave {name} out",
            )
        _mapping_if_any(document, (name, "params"))
    kind = _at(document, ("optimizer", "type"), "AdamW")
    if str(kind).lower() not in keys.ENGINE_OPTIMIZERS and kind not in keys.TORCH_OPTIMIZERS:
        known = ["Adam", "AdamW", "Lion", "Lamb", "Muon", *sorted(keys.TORCH_OPTIMIZERS)]
        raise refusal(
            f"{show(kind)} is no optimizer of DeepSpeed or torch: ranks fail once they have started",
            document.places,
            ("optimizer", "type"),
            allowed="one of DeepSpeed's, such as AdamW, or the name of a class of torch.optim",
            fix=near_miss(kind, known),
        )
    numbers: tuple[Key, ...] = (
        ("gradient_clipping",),
        ("optimizer", "params", "lr"),
        ("optimizer", "params", "weight_decay"),
    )
    for key in numbers:
        _number_or_auto(document, key)
    what = "autocast is refused: it hides the dtype of the arithmetic"
    _refuse(
        document,
        ("torch_autocast", "enabled"),
        what,
        _FALSE,
        "bf16.enabled here, or launch.mixed_precision: bf16 in the matrix",
    )
    sizes: tuple[Key, ...] = (("tensor_parallel", "autotp_size"), ("sequence_parallel_size",))
    for key in sizes:
        what = "ranks would share samples, and throughput would count those samples twice"
        _refuse(document, key, what, ("0", "1"), "leave it out")
    for key in _autos(content, ()):
        if dotted(key) not in keys.AUTO:
            raise refusal(
                "'auto' is not resolved by accelerate, only by the Trainer of transformers",
                document.places,
                key,
                fix="write the value, or leave it out",
            )
    return content


def _deepspeed_path(file: JsonValue, folder: Path, place: str | None) -> Path:
    field = "deepspeed_config.deepspeed_config_file"
    if not isinstance(file, str):
        raise InputError(f"{show(file)} cannot be used", where=place, field=field, allowed="the path of a JSON file")
    path = next((path for path in (folder / file, Path(file)) if path.is_file()), None)
    if path is None:
        raise InputError(f"the DeepSpeed config {file!r} does not exist", where=place, field=field)
    return path


def _autos(value: JsonValue, key: Key) -> Iterator[Key]:
    """Where a DeepSpeed config says ``auto``, as accelerate looks for it: in mappings, not in lists."""
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from _autos(inner, (*key, part))
    elif value == "auto":
        yield key


def _read_document(path: Path) -> Document:
    text, place = read_text(path), lambda line: f"{path}:{line + 1}"
    if path.suffix != ".json":
        return parse(text, place, str(path))
    data = parse_json(text, str(path))
    try:
        return Document(data, parse(text, place, str(path)).places)  # nearly all JSON is YAML
    except InputError:
        return Document(data, {(): str(path)})


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
        raise refusal(f"{show(value)} cannot be used", document.places, key, allowed="a mapping of fields to values")
    return value


def _mapping_if_any(document: Document, key: Key) -> Content:
    return {} if _at(document, key) is None else _mapping(document, key)


def _known(document: Document, key: Key, known: Collection[str], otherwise: str) -> None:
    """Raises InputError for the first field that is not known. A comment may begin with an underscore."""
    for name in _mapping_if_any(document, key):
        if name not in known and not name.startswith("_"):
            raise refusal(
                f"unknown field {name!r}: {otherwise}",
                document.places,
                (*key, name),
                fix=near_miss(name, known) or near_miss(*_ending_in(name, known)) or _fix(name),
            )


def _fix(name: str) -> str:
    if name in keys.ENGINE:
        return "this is a field of DeepSpeed's own JSON: write that to a file, and name it as deepspeed_config_file"
    return "remove it"


def _ending_in(name: str, known: Collection[str]) -> tuple[str, list[str]]:
    """The known field that is ``name`` after a prefix."""
    found = [field for field in known if field.endswith(f"_{name}")]
    return (found or [name])[0], found


def _number_or_auto(document: Document, key: Key) -> None:
    value = _at(document, key, "auto")
    try:
        if value is None or value == "auto" or 0 <= float(str(value)) < math.inf:
            return
    except ValueError:
        pass
    raise refusal(f"{show(value)} is not supported", document.places, key, allowed="a number, at least 0, or auto")


def _one_of(
    document: Document, key: Key, allowed: tuple[JsonValue, ...], default: JsonValue, fix: str | None = None
) -> None:
    value = _at(document, key, default)
    if value not in allowed or (type(value) is float) or (type(value) is bool and bool not in map(type, allowed)):
        words = list(dict.fromkeys(str(word) for word in allowed if word is not None))
        raise refusal(
            f"{show(value)} is not supported", document.places, key, allowed=words, fix=fix or near_miss(value, words)
        )


def _refuse(document: Document, key: Key, what: str, off: tuple[str, ...], fix: str) -> None:
    """Raises InputError unless the setting is absent or has one of the values ``off``."""
    value = _at(document, key, off[0])
    if str(value).lower() not in off:
        raise refusal(f"{show(value)}: {what}", document.places, key, allowed=off[0], fix=fix)


def _refuse_compilation(document: Document) -> None:
    """accelerate would compile the whole model in `prepare`, and the wrapper hides how the model is sharded."""
    what = "compilation belongs in the matrix: results would not record it here"
    fix = "leave it out; set train.compile: unit"
    for key in (("dynamo_backend",), ("dynamo_config", "dynamo_backend")):
        _refuse(document, key, what, ("no", "false", "none"), fix)
