"""The protocol of a workload: what a user writes, and what bench makes of it. bench knows nothing else of it.

Only ``build`` and ``dataset`` are required. `bench.workloads.definition` says what stands for a part that is missing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset


class Flops(Protocol):
    """Floating-point operations of one sample; a multiply-add counts as two. Any object with these attributes."""

    @property
    def step(self) -> int:
        """Forward, backward, and what gradient checkpointing recomputes."""

    @property
    def recomputed(self) -> int:
        """The part of ``step`` that gradient checkpointing recomputes."""


class Workload(Protocol):
    """A model and its samples. Its module should import without torch, because `bench run --dry-run` imports it too."""

    Config: ClassVar[type]
    """Optional: a pydantic model, frozen and with ``extra="forbid"``, or a dataclass. A matrix may set or vary its
    fields; they must be JSON values. Without it, the parameters of ``__init__`` are the fields."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Optional: named field values that the user's own fields override."""
    auto_preset: ClassVar[Callable[[str, int], str]]
    """Optional: the preset for ``preset: auto``, from the device and the bytes of memory per rank."""
    cpu_memory_limits: ClassVar[Mapping[str, int]]
    """Optional: bytes per rank, by preset. The memory limit of a batch search on a CPU when the user sets none."""
    parameter_counts: ClassVar[Callable[[Any], Mapping[str, int]]]
    """Optional: the parameter count of each part of the model for a config, to refuse what the host cannot hold."""
    units: ClassVar[tuple[str, ...]]
    """Optional: class names of the modules that are sharded, each as one unit. Its ``forward`` does all of its
    computation. Without it, `bench.runner.unit_names` finds them in the model."""
    cost_options: ClassVar[tuple[str, ...]]
    """Optional: fields of the Config that change what a step costs, and not its losses. A report recommends their best
    values. Without it, these are ``attention`` and ``grad_ckpt``."""
    loss: Callable[[Any, Any], Any]
    """Optional: the loss from what ``forward`` returned and the target; see `bench.runner.forward`."""
    collate: Callable[[list[Any]], Any]
    """Optional: a batch of a list of samples, as a DataLoader's ``collate_fn`` makes it: pads, or nests what it likes.
    Without it counts a ``collate_fn`` of the samples that ``dataset`` returns, else torch's ``default_collate``."""
    cast_inputs: ClassVar[bool]
    """Optional: False if ``forward`` itself casts samples to the dtype of the weights. By default bench does."""
    equal_samples: ClassVar[bool]
    """Optional: True if all samples have the same shapes. By default bench looks at them, for a fraction of a second,
    because the largest ones decide whether a batch fits."""
    worst_batch: Callable[[Any, int], Sequence[Any]]
    """Optional: of what ``dataset`` returned, so many samples that together take the most memory. Without it, bench
    looks for the largest."""
    flops_per_sample: Callable[[], Flops | None]
    """Optional: from it the report computes MFU, HFU and the recomputed share. None: not known. With a parameter, those
    of a sample of so many tokens, which batches then say: `bench.runner.seen`."""
    tokens_per_sample: Callable[[], int | None]
    """Optional: the length of a sample's sequence, for tokens per second, where batches do not say it."""
    refusal: Callable[[Exception], Exception | None]
    """Optional: what to raise in place of an exception of the first ``forward``, other than out of memory; None: the
    exception itself."""

    draw: Callable[[str, int, int, "torch.Tensor"], None]
    """Optional: write the initial values of a parameter, given its name and the seed. They are those of the flattened
    parameter from an index on, and the tensor to fill, of any length, device and floating dtype, has one dimension.
    Each rank then draws what it keeps, where it keeps it, after ``build`` on torch's meta device: no host holds a whole
    model. ``build`` must leave its buffers on the CPU."""

    def build(self) -> "torch.nn.Module":
        """The model in fp32 on the CPU, the same for the same ``torch.manual_seed``.

        Its ``forward`` draws no random numbers, so that the same samples give the same loss on any backend and any
        number of ranks. `bench.runner.forward` says what it takes and returns. The loss is the mean over samples, with
        equal weights. A mapping may also hold the scalars ``mse``, ``ce``, ``l1`` and ``accuracy``.
        """

    def dataset(self, seed: int) -> "Dataset[Any]":
        """A map-style dataset whose sample ``i`` depends on ``seed`` and ``i`` alone; ``seed`` may be left out.

        A sample is a dict or a tuple of tensors, or a tensor; with ``collate``, anything. After the last sample comes
        the first again. Of a DataLoader count its dataset and its ``collate_fn``.
        """


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A workload that is not configured yet: the user's class or function, with a default for each missing part."""

    Config: type[BaseModel]
    presets: Mapping[str, Mapping[str, Any]]
    auto_preset: Callable[[str, int], str] | None
    """None: ``preset: auto`` means no preset."""
    cpu_memory_limits: Mapping[str, int]
    parameter_counts: Callable[[Any], Mapping[str, int]] | None
    units: tuple[str, ...] | None
    """None: they are found in the model, once it is built."""
    cost_options: tuple[str, ...] = ()
    """Empty: those that many workloads have."""
    draws: bool = False
    """Whether its weights can be drawn part by part. `Workload.draw` counts only beside the ``build`` of the same
    class: a subclass may change in its ``build`` what it inherits."""
    create: Callable[[BaseModel], Workload]
    """The workload for one config."""
