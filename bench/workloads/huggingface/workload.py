"""A model of transformers as a workload. torch is imported only when something is built."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Union

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator

from bench.workloads.huggingface.description import Description, describe, is_random, still
from bench.workloads.protocol import Definition

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from bench.workloads.protocol import Flops

PREFIX = "hf:"
LENGTHS = ("max_position_embeddings", "n_positions", "max_target_positions")
"""What configs call the number of positions of their text."""
_TYPES: dict[str, Any] = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "string": str,
    "null": None,
    "array": list[JsonValue],
    "object": dict[str, JsonValue],
}


class Options(BaseModel):
    """What bench itself takes, beside the fields of the model's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    checkpoints: ClassVar[bool] = True
    """Whether the model type has gradient checkpointing."""

    task: str
    """``X`` of the ``AutoModelForX`` that is trained."""
    seq_len: int = Field(128, ge=2)
    """Tokens of a sample. An encoder-decoder reads so many and writes so many."""
    audio_samples: int = Field(160_000, ge=1)
    """Length of a sample of sound, for models that read the waveform: 10 s at 16 kHz."""
    picture_size: int | None = Field(None, ge=1)
    """Height and width of a picture; null: the ``image_size`` of the config, or 224."""
    attention: str | None = None
    """transformers' ``attn_implementation``, such as eager, sdpa or flash_attention_2; null: transformers chooses."""
    grad_ckpt: bool = False
    """The model's own gradient checkpointing."""
    use_reentrant: bool = False
    """How torch checkpoints."""

    @model_validator(mode="after")
    def _nothing_random(self) -> Self:
        for name in type(self).model_fields:
            if is_random(name) and (value := getattr(self, name)) != still(value):
                raise ValueError(f"{name} must be 0: with random numbers in forward, backends could not be compared")
        return self

    @model_validator(mode="after")
    def _can_checkpoint(self) -> Self:
        if self.grad_ckpt and not self.checkpoints:
            raise ValueError("grad_ckpt must be false: transformers has no gradient checkpointing for this model type")
        return self

    @model_validator(mode="after")
    def _within_positions(self) -> Self:
        for name in LENGTHS:
            limit = getattr(self, name, None)
            if isinstance(limit, int) and self.seq_len > limit:
                raise ValueError(f"seq_len={self.seq_len} is more than {name}={limit} of the model")
        return self


class HuggingFace:
    """A model of transformers with random weights, and random samples of its own inputs."""

    equal_samples = True

    def __init__(self, description: Description, options: Options) -> None:
        self._described, self._options = description, options

    def tokens_per_sample(self) -> int | None:
        """The length of a sample's text, with the tokens that stand for pictures; None where it is not one text."""
        match self._options.task:
            case "CausalLM" | "MaskedLM":
                return self._options.seq_len
            case "ImageTextToText":
                ids = self.dataset(0)[0].get("input_ids")
                return None if ids is None else len(ids)
            case _:
                return None

    def flops_per_sample(self) -> "Flops | None":
        """Counted by torch on a model without data; None where torch cannot count all of it."""
        from bench.workloads.huggingface.flops import flops_per_sample

        return flops_per_sample(self._described, self._options)

    def build(self) -> "nn.Module":
        """The model in fp32, the same weights for the same ``torch.manual_seed``."""
        from bench.workloads.huggingface.model import trained

        return trained(self._described, self._options)

    def collate(self, samples: "list[dict[str, Any]]") -> "dict[str, Any]":
        """A batch of samples, as the model's own processor lays it out."""
        from bench.workloads.huggingface.samples import collate

        return collate(samples)

    def refusal(self, error: Exception) -> Exception | None:
        """A sentence for what the model's own code says of samples or of a config that does not fit together."""
        from bench.workloads.huggingface.model import refusal

        return refusal(self._described, self._options, error)

    def dataset(self, seed: int) -> "Dataset[dict[str, Tensor]]":
        """Samples that depend only on ``seed`` and their index."""
        from bench.workloads.huggingface.samples import Samples

        return Samples(self._described, self._options, seed)


def define(name: str) -> Definition:
    """The workload ``hf:<model type>`` or ``hf:<folder>``, whose Config has all fields of the model's config.

    Raises:
        InputError: there is no such model, or bench has no samples for it.
    """
    described = describe(name.removeprefix(PREFIX))
    return Definition(
        Config=_config(described),
        presets={},
        auto_preset=None,
        cpu_memory_limits={},
        parameter_counts=None,
        units=None,
        create=partial(HuggingFace, described),  # type: ignore[arg-type]  # its Config is one of Options
    )


def _config(described: Description) -> type[Options]:
    fields: dict[str, Any] = {"task": (Literal[described.tasks], described.tasks[0])}
    for name, field in described.fields.items():
        if name not in Options.model_fields:
            kinds = (*field.kinds, "null") if field.kinds and field.default is None else field.kinds
            fields[name] = (_annotation(tuple(dict.fromkeys(kinds))), field.default)
    kind = create_model("Config", __base__=Options, **fields)
    kind.checkpoints = described.checkpoints
    return kind


def _annotation(kinds: tuple[str, ...]) -> Any:
    """The type of a field that takes these JSON types."""
    return Union[tuple(_TYPES[kind] for kind in kinds)] if kinds else JsonValue  # noqa: UP007


def modules(name: str) -> tuple[str, ...]:
    """What a rank server imports before it forks: a model's classes take seconds, and counting FLOPs does."""
    own = ("bench.workloads.huggingface.flops", "torch.fx.experimental.symbolic_shapes")
    return *own, describe(name.removeprefix(PREFIX)).module
