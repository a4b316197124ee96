"""A model of transformers as a workload. torch is imported only when something is built."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.workloads.huggingface.description import Description, describe
from bench.workloads.huggingface.options import Options, options_of
from bench.workloads.protocol import Definition

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from bench.workloads.huggingface.samples import Samples
    from bench.workloads.protocol import Flops

PREFIX = "hf:"


class HuggingFace:
    """A model of transformers with random weights, and random samples of its own inputs."""

    equal_samples = True

    def __init__(self, description: Description, options: Options) -> None:
        self._described, self._options = description, options
        self._flops: Callable[[int], Flops | None] | None = None
        if options.lengths:
            self.equal_samples, self.worst_batch = False, self._longest
            self.flops_per_sample = self._flops_of  # type: ignore[method-assign, assignment]

    def tokens_per_sample(self) -> int | None:
        """The length of a sample's text, with the tokens that stand for pictures; None where it is not one text, or
        where batches say it."""
        if self._options.lengths:
            return None
        match self._options.task:
            case "CausalLM" | "MaskedLM":
                return self._options.longest
            case "ImageTextToText":
                ids = self.dataset(0)[0].get("input_ids")
                return None if ids is None else len(ids)
            case _:
                return None

    def flops_per_sample(self) -> "Flops | None":
        """Counted by torch on a model without data; None where torch cannot count all of it."""
        from bench.workloads.huggingface.flops import flops_per_sample

        return flops_per_sample(self._described, self._options)

    def _flops_of(self, tokens: int) -> "Flops | None":
        """Of a sample of so many tokens."""
        from bench.workloads.huggingface.flops import flops_by_length

        if self._flops is None and self._options.lengths:
            self._flops = flops_by_length(self._described, self._options, *self._options.lengths.bounds)
        return self._flops(tokens) if self._flops else None

    def _longest(self, samples: "Samples", size: int) -> "list[dict[str, Any]]":
        return samples.longest(size)

    def build(self) -> "nn.Module":
        """The model in fp32, the same weights for the same ``torch.manual_seed``."""
        from bench.workloads.huggingface.model import build_checked

        return build_checked(self._described, self._options)

    def collate(self, samples: "list[dict[str, Any]]") -> "dict[str, Any]":
        """A batch of samples, as the model's own processor lays it out; those of many lengths padded, or packed."""
        from bench.workloads.huggingface.samples import collate, packed, padded

        if not self._options.lengths:
            return collate(samples)
        pad = getattr(self._options, "pad_token_id", None)
        return packed(samples) if self._options.packed else padded(samples, pad if isinstance(pad, int) else 0)

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
        Config=options_of(described),
        presets={},
        auto_preset=None,
        cpu_memory_limits={},
        parameter_counts=None,
        units=None,
        create=partial(HuggingFace, described),  # type: ignore[arg-type]  # its Config is one of Options
    )


def modules(name: str) -> tuple[str, ...]:
    """What a rank server imports before it forks: a model's classes take seconds, and counting FLOPs does."""
    own = ("bench.workloads.huggingface.flops", "torch.fx.experimental.symbolic_shapes")
    return *own, describe(name.removeprefix(PREFIX)).module
