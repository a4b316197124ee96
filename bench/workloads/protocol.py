"""The protocol that a workload implements. bench knows nothing else about what it trains."""

from collections.abc import Callable, Mapping
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
        ...

    @property
    def recomputed(self) -> int:
        """The part of ``step`` that gradient checkpointing recomputes."""
        ...


class Workload(Protocol):
    """A model and its samples. Its module should import without torch, because `bench run --dry-run` imports it too."""

    Config: ClassVar[type[BaseModel]]
    """Frozen, ``extra="forbid"``. A matrix may set or vary its fields; they must be JSON values."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    """Named field values that the user's own fields override. May be empty."""
    cpu_memory_limits: ClassVar[Mapping[str, int]]
    """Optional: bytes per rank, by preset. The memory limit of a batch search on a CPU when the user sets none."""
    parameter_counts: ClassVar["Callable[[Any], Mapping[str, int]]"]
    """Optional: the parameter count of each part of the model for a config; `bench doctor` shows it."""
    flops_per_sample: Callable[[], Flops]
    """Optional: from it the report computes MFU, HFU and the recomputed share."""
    tokens_per_sample: Callable[[], int]
    """Optional: the length of a sample's sequence, for tokens per second."""
    units: ClassVar[tuple[str, ...]]
    """Class names of the modules that are sharded, each as one unit. Its ``forward`` does all of its computation."""

    def __init__(self, config: Any) -> None: ...

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """The preset for ``preset: auto``: the largest that trains in this memory."""
        ...

    def build(self) -> "torch.nn.Module":
        """The model in fp32 on the CPU, the same for the same ``torch.manual_seed``.

        Its ``forward`` takes a collated batch, a dict of tensors with a leading batch dimension, and returns a dict of
        scalar tensors: ``loss``, averaged over samples with equal weight, and any of ``mse``, ``ce``, ``l1``,
        ``accuracy``. It draws no random numbers, so that the same samples give the same loss on any backend and any
        number of ranks. Samples keep their dataset's dtype, weights may be bf16, and autocast is off: ``forward``
        itself casts where the two meet.
        """
        ...

    def dataset(self, seed: int) -> "Dataset[dict[str, torch.Tensor]]":
        """A map-style dataset whose sample ``i`` depends on ``seed`` and ``i`` alone; long enough for any run."""
        ...
