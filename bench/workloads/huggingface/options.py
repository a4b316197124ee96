"""The options of a model of transformers: bench's own, beside the fields of the model's config. Imports no torch."""

from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self, Union

from pydantic import BaseModel, Field, JsonValue, create_model, model_validator

from bench.workloads.huggingface.description import Description, is_random, still
from bench.workloads.huggingface.lengths import Lengths, Listed, Uniform

LENGTHS = ("max_position_embeddings", "n_positions", "max_target_positions")
"""What configs call the number of positions of their text."""
ONE_TEXT = ("CausalLM", "MaskedLM", "TokenClassification", "SequenceClassification", "QuestionAnswering")
"""Tasks whose sample may be one text, and nothing else that depends on its length."""
_TYPES: dict[str, Any] = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "string": str,
    "null": None,
    "array": list[JsonValue],
    "object": dict[str, JsonValue],
}


class Lora(BaseModel, frozen=True, extra="forbid"):
    """Adapters of low rank beside frozen weights, by the package peft."""

    r: int = Field(ge=1)
    """The rank."""
    targets: str | list[str] = "all-linear"
    """Which modules get one, as peft's ``target_modules``: ``all-linear`` are all linear ones but the head; else the
    ends of names, such as ``[q_proj, v_proj]``."""
    alpha: int = Field(16, ge=1)
    """What an adapter adds is scaled by ``alpha / r``."""

    @model_validator(mode="after")
    def _has_peft(self) -> Self:
        if find_spec("peft") is None:
            raise ValueError("lora needs the package peft: pip install 'training-bench[lora]'")
        return self


class Options(BaseModel, frozen=True, extra="forbid", protected_namespaces=()):
    """What bench itself takes, beside the fields of the model's config."""

    checkpoints: ClassVar[bool] = True
    """Whether the model type has gradient checkpointing."""
    packs: ClassVar[bool] = True
    """Whether samples in one row do not see each other where `position_ids` begin anew."""

    task: str
    """``X`` of the ``AutoModelForX`` that is trained."""
    seq_len: Lengths = 128
    """Tokens of a sample. An encoder-decoder reads so many and writes so many. Or many lengths, of tasks with one text:
    ``{uniform: [128, 2048]}``, or ``{file: lengths.txt}`` with a length a line."""
    packed: bool = False
    """With many lengths: put the samples of a batch into one row without padding."""
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
    lora: Lora | None = None
    """Train adapters of the model alone: ``{r: 16, targets: all-linear}``."""

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
            if isinstance(limit, int) and self.longest > limit:
                raise ValueError(f"seq_len={self.longest} is more than {name}={limit} of the model")
        return self

    @model_validator(mode="after")
    def _many_lengths(self) -> Self:
        if self.packed and self.lengths is None:
            raise ValueError("packed: true needs samples of many lengths: seq_len: {uniform: [128, 2048]} or {file: …}")
        if self.packed and not (self.packs and self.task == "CausalLM"):
            raise ValueError("packed: true needs a CausalLM whose layers all read position_ids, such as llama")
        if self.lengths is not None and self.task not in ONE_TEXT:
            raise ValueError(f"seq_len must be one integer for {self.task}; many lengths go with {', '.join(ONE_TEXT)}")
        return self

    @property
    def lengths(self) -> Uniform | Listed | None:
        """None: all samples have one length."""
        return None if isinstance(self.seq_len, int) else self.seq_len

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return self.seq_len if isinstance(self.seq_len, int) else self.seq_len.bounds[1]

    def at(self, length: int) -> Self:
        """The same with samples of one length."""
        return self.model_copy(update={"seq_len": length, "packed": False})


def options_of(described: Description) -> type[Options]:
    """The options of a model type: bench's own, and every field of its config."""
    fields: dict[str, Any] = {"task": (Literal[described.tasks], described.tasks[0])}
    for name, field in described.fields.items():
        if name not in Options.model_fields:
            kinds = (*field.kinds, "null") if field.kinds and field.default is None else field.kinds
            fields[name] = (_annotation(tuple(dict.fromkeys(kinds))), field.default)
    kind = create_model("Config", __base__=Options, **fields)
    kind.checkpoints, kind.packs = described.checkpoints, described.packs
    return kind


def _annotation(kinds: tuple[str, ...]) -> Any:
    """The type of a field that takes these JSON types."""
    return Union[tuple(_TYPES[kind] for kind in kinds)] if kinds else JsonValue  # noqa: UP007
