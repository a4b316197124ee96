"""What transformers knows of a model type: the tasks that it has a class for, and the fields of its config.

transformers imports torch wherever it finds it, but its config classes need none. The command line therefore asks a
child process that hides torch, which takes 2 s instead of 4.
"""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue, PydanticUserError, TypeAdapter

from bench.errors import InputError, near_miss

TASKS = {
    "ImageTextToText": "FOR_IMAGE_TEXT_TO_TEXT",
    "SpeechSeq2Seq": "FOR_SPEECH_SEQ_2_SEQ",
    "MultimodalLM": "FOR_MULTIMODAL_LM",
    "Seq2SeqLM": "FOR_SEQ_TO_SEQ_CAUSAL_LM",
    "TextToSpectrogram": "FOR_TEXT_TO_SPECTROGRAM",
    "TextToWaveform": "FOR_TEXT_TO_WAVEFORM",
    "CTC": "FOR_CTC",
    "RNNT": "FOR_RNNT",
    "TDT": "FOR_TDT",
    "AudioClassification": "FOR_AUDIO_CLASSIFICATION",
    "ZeroShotImageClassification": "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION",
    "ImageClassification": "FOR_IMAGE_CLASSIFICATION",
    "VideoClassification": "FOR_VIDEO_CLASSIFICATION",
    "ZeroShotObjectDetection": "FOR_ZERO_SHOT_OBJECT_DETECTION",
    "ObjectDetection": "FOR_OBJECT_DETECTION",
    "UniversalSegmentation": "FOR_UNIVERSAL_SEGMENTATION",
    "SemanticSegmentation": "FOR_SEMANTIC_SEGMENTATION",
    "DepthEstimation": "FOR_DEPTH_ESTIMATION",
    "ImageMatting": "FOR_IMAGE_MATTING",
    "ImageToImage": "FOR_IMAGE_TO_IMAGE",
    "MaskedLM": "FOR_MASKED_LM",
    "CausalLM": "FOR_CAUSAL_LM",
    "TimeSeriesPrediction": "FOR_TIME_SERIES_PREDICTION",
    "TimeSeriesClassification": "FOR_TIME_SERIES_CLASSIFICATION",
    "TokenClassification": "FOR_TOKEN_CLASSIFICATION",
    "SequenceClassification": "FOR_SEQUENCE_CLASSIFICATION",
    "QuestionAnswering": "FOR_QUESTION_ANSWERING",
    "VisualQuestionAnswering": "FOR_VISUAL_QUESTION_ANSWERING",
    "MaskedImageModeling": "FOR_MASKED_IMAGE_MODELING",
    "PreTraining": "FOR_PRETRAINING",
    "Model": "",
}
"""``X`` of each ``AutoModelForX`` that bench has samples for (``Model``: ``AutoModel`` itself), and what transformers
calls its mapping. A model type with several is trained at the first of them: transformers can make a decoder of nearly
any encoder."""

_NOT_FIELDS = frozenset(
    {"architectures", "auto_map", "dtype", "id2label", "label2id", "model_type", "output_attentions", "problem_type"}
    | {"model_config", "output_hidden_states", "return_dict", "torch_dtype", "transformers_version", "use_cache"}
)
"""Fields that bench sets, or that have nothing to do with training."""
LABELS = 2
"""Classes of a classifier that says nothing of them, as in transformers."""
_FOR_TRAINING = {
    "ctc_loss_reduction": "mean",
    "hash_seed": 0,
    "latent_stats_ema_steps": 0,
    "lsd_distill_probability": 1.0,
    "num_denoising": 0,
    "pos_embed_rescale": None,
}
"""Defaults for which each sample has the same weight in the loss, detectors learn nothing from random boxes,
positions are not scaled at random, hashes are the same in each step, and no term of the loss comes or goes."""
_RANDOM = (
    "dropout",
    "pdrop",
    "layerdrop",
    "drop_path",
    "drop_rate",
    "drop_prob",
    "jitter",
    "mask_time_prob",
    "mask_feature_prob",
)


_MULTI = re.DOTALL | re.MULTILINE
_MIXES_PACKED = re.compile(r"nn\.Conv1d|mamba|recurren|rwkv", re.IGNORECASE)
_REFUSES_LABELS = re.compile(r'raise \w+\(\s*".*(raining (of \w+ )?is not|not support training|is not trainable)')
_COMPUTES = re.compile(r"\bloss\w*(, \w+)* \+?= (?!None)|\bloss=(?!loss\b|None)|super\(\)\.forward\(")
"""What has a loss: an assignment, under any name that has it in front, or the base class."""


class ConfigField(BaseModel, frozen=True):
    """A field of a config."""

    default: JsonValue
    """What the config class has, or the folder's ``config.json``."""
    kinds: tuple[str, ...]
    """Types that it takes, as JSON Schema names them; empty for any."""


class Description(BaseModel, frozen=True):
    """What bench has to know of a model type to validate options without torch."""

    model_type: str
    tasks: tuple[str, ...]
    """The first is the default."""
    module: str
    """The module of its classes."""
    checkpoints: bool = True
    """Whether transformers can checkpoint any class of it."""
    packs: bool = False
    """Whether its layers keep samples apart that share a row: attention does, by their positions, and layers with a
    state or a convolution do not."""
    fields: dict[str, ConfigField]


def mapping_of(task: str) -> str:
    """What transformers calls the mapping from model types to their classes for ``task``."""
    return "_".join(("MODEL", TASKS[task], "MAPPING")) if TASKS[task] else "MODEL_MAPPING"


def is_random(field: str) -> bool:
    """Whether ``field`` of a config is the probability or strength of something that forward draws."""
    return any(part in field for part in _RANDOM)


def still(strength: Any) -> Any:
    """What stands for ``strength`` if nothing may be drawn: 0 for a number, zeros for a list."""
    if isinstance(strength, (list, tuple)):
        return [still(part) for part in strength]
    return type(strength)(0) if isinstance(strength, int | float) else strength


@functools.cache
def describe(source: str) -> Description:
    """The model type ``source``, or the one that the folder ``source`` has a ``config.json`` of.

    Raises:
        InputError: transformers is missing or too old, does not know the type, or has none of `TASKS` for it.
    """
    source = _found(source)
    if "torch" in sys.modules:
        return read(source)
    child = subprocess.run([sys.executable, "-m", __package__, source], capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return Description.model_validate_json(child.stdout.splitlines()[-1])
    if child.returncode == 2:
        raise InputError(**json.loads(child.stdout.splitlines()[-1]))
    why = (child.stderr.splitlines() or ["no message"])[-1]
    raise InputError(f"transformers cannot describe {source!r}: {why}", field="workload.name")


def read(source: str) -> Description:
    """Import transformers and describe ``source``; see `describe`."""
    # ``from ... import`` of a module would ask for torch.
    configuration_auto = import_module("transformers.models.auto.configuration_auto")
    modeling_auto = import_module("transformers.models.auto.modeling_auto")
    written = _config_json(Path(source)) if _names_folder(source) else {"model_type": source}
    model_type = str(written.get("model_type"))
    known = list(configuration_auto.CONFIG_MAPPING_NAMES)
    if model_type not in known:
        raise InputError(
            f"{model_type!r} is not a model type of transformers",
            field="workload.name",
            allowed="hf:<model type> such as hf:gpt2, or hf:./<folder with a config.json>; nothing comes from the hub",
            fix=near_miss(model_type, known),
        )
    classes: dict[str, tuple[str, ...]] = {}
    for task in TASKS:
        found = getattr(modeling_auto, mapping_of(task) + "_NAMES").get(model_type, ())
        if found:
            classes[task] = (found,) if isinstance(found, str) else tuple(found)
    package = configuration_auto.model_type_to_module_name(model_type)
    if not classes:
        others = [name for name in known if configuration_auto.model_type_to_module_name(name) == package]
        raise InputError(
            f"transformers has no model of {model_type!r} to train: it is a part of others",
            field="workload.name",
            allowed=[f"hf:{name}" for name in others if name != model_type] or None,
        )
    classes = {task: names for task, names in classes.items() if _trains(task, package, names[0])}
    if not classes:
        raise InputError(f"no class of {model_type!r} in transformers computes a loss", field="workload.name")
    architectures = written.get("architectures") or []
    assert isinstance(architectures, list)
    tasks = sorted(classes, key=lambda task: not set(classes[task]) & set(architectures))
    return Description(
        model_type=model_type,
        tasks=tuple(tasks),
        module=f"transformers.models.{package}.modeling_{package}",
        checkpoints="supports_gradient_checkpointing = True" in _modeling(package),
        packs="create_causal_mask" in _modeling(package) and not _MIXES_PACKED.search(_modeling(package)),
        fields=_fields(configuration_auto.CONFIG_MAPPING[model_type], _looked_up(package), written),
    )


def is_target(parameter: str) -> bool:
    """Whether a forward with this parameter computes a loss."""
    targets = ("return_loss", "start_positions", "future_values", "target_values")
    return ("label" in parameter and not parameter.startswith("input")) or parameter in targets


def computes_loss(package: str, name: str) -> bool:
    """Whether the forward of a class computes a loss. Some take labels only to say that they cannot, or for nothing.

    Read from the source: importing it would take seconds. A class that inherits its forward is taken to compute one.
    """
    body = _body(package, name)
    forward = re.search(r"def forward\((.*?)\)(?: ->|:\n)", body, _MULTI)
    if forward is None:
        return _runs(package, name)
    taken = any(map(is_target, re.findall(r"(\w+)\s*:", forward[1]))) or "loss=loss," in body
    return taken and bool(_COMPUTES.search(body)) and not _REFUSES_LABELS.search(body)


def _trains(task: str, package: str, name: str) -> bool:
    """Whether a class has a loss, or a last hidden state that bench makes a loss of."""
    if task == "Model":
        return _runs(package, name) and not _REFUSES_LABELS.search(_body(package, name))
    return computes_loss(package, name)


def _runs(package: str, name: str) -> bool:
    """Whether a class has a forward, of its own or of a base that is no mere beginning of a model."""
    body = _body(package, name)
    bases = re.findall(r"\w+", body[: body.find(":")])[2:]
    above = [base for base in bases if not base.endswith(("PreTrainedModel", "Mixin"))]
    return not body or "def forward(" in body or any(_runs(package, base) for base in above)


def _body(package: str, name: str) -> str:
    """The source of a class without docstrings; empty if it stands in another package."""
    found = re.search(rf"^class {name}\(.*?(?=^class |\Z)", _modeling(package), _MULTI)
    return re.sub(r'r?""".*?"""', "", found[0], flags=re.DOTALL) if found else ""


@functools.cache
def _modeling(package: str) -> str:
    """The source of the package's models."""
    folder = Path(str(import_module("transformers").__file__)).parent / "models" / package
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("modeling_*.py")))


def _names_folder(source: str) -> bool:
    return source.startswith((".", "/"))


def _found(source: str) -> str:
    """``source``; if it is a folder, its path. It is looked for like the module of any other workload."""
    if not _names_folder(source):
        return source
    places = [Path(place) / source for place in (*sys.path, "")]
    return str(next((place for place in places if (place / "config.json").is_file()), places[0]).absolute())


def _config_json(folder: Path) -> Mapping[str, JsonValue]:
    file = folder / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the model's config: {error}", where=str(file), field="workload.name") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise InputError("names no model_type", where=str(file), field="workload.name", fix="add model_type: gpt2")
    return content


def _looked_up(package: str) -> list[str]:
    """Fields that models take from a config, or from one in it, if it has them: ``head_dim``, ``pad_token_id``.

    Few config classes declare them.
    """
    return re.findall(r'(?:getattr\((?:self\.)?config, "|config\.(?=\w+_token_id\b))(\w+)', _modeling(package))


def _fields(kind: Any, optional: Sequence[str], written: Mapping[str, JsonValue]) -> dict[str, ConfigField]:
    """The fields of the config class ``kind``, with the values that ``written`` has for them.

    Null are ``optional`` fields, and values that a config derives from others, such as the type of each layer.
    """
    if not dataclasses.is_dataclass(kind):
        raise InputError("hf: workloads need transformers 5 or newer", field="workload.name")
    defaults = defaults_of(kind)
    kinds = {field.name: _kinds(field.type) for field in dataclasses.fields(kind)} | {"num_labels": ("integer",)}
    labels = written.get("id2label")
    labelled = {"num_labels": len(labels) if isinstance(labels, dict) else LABELS}
    values: dict[str, Any] = {**dict.fromkeys(optional), **labelled, **defaults, **written}
    values |= {name: value for name, value in _FOR_TRAINING.items() if name in defaults}
    for name in filter(is_random, values):
        values[name] = still(values[name]) or (None if values[name] is None else 0)
    return {
        name: ConfigField(default=value, kinds=kinds.get(name, ()))
        for name, value in values.items()
        if name not in _NOT_FIELDS and not name.startswith("_")
    }


def defaults_of(kind: Any) -> dict[str, JsonValue]:
    """The defaults of a config class; null for one that JSON cannot express: a config inside the config, infinity."""
    defaults: dict[str, JsonValue] = {}
    for field in dataclasses.fields(kind):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        try:
            defaults[field.name] = json.loads(json.dumps(default, allow_nan=False))
        except (TypeError, ValueError):
            defaults[field.name] = None
    return defaults


def _kinds(annotation: Any) -> tuple[str, ...]:
    """The JSON types of an annotation; none if it names classes of transformers or torch."""
    try:
        schema = TypeAdapter(annotation).json_schema()
    except (PydanticUserError, NameError):
        return ()
    kinds = [part.get("type") for part in schema.get("anyOf", [schema])]
    return tuple(dict.fromkeys(kinds)) if all(kinds) else ()
