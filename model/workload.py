"""The policy as `bench` sees it. torch is imported when something is built, not before."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from model.config import PI05_SHAPE, PRESETS, Pi07Config
from model.counts import Flops, auto_preset, flops_per_sample, parameter_count_by_part

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset


class Pi07:
    """A pi0.7-style policy on made-up episodes."""

    Config: ClassVar[type[Pi07Config]] = Pi07Config
    presets: ClassVar[Mapping[str, Mapping[str, JsonValue]]] = PRESETS
    # So that a search over batch reaches it in seconds.
    cpu_memory_limits: ClassVar[Mapping[str, int]] = {"tiny": 320 * 2**20}
    units: ClassVar[tuple[str, ...]] = ("InterleavedLayer", "VisionLayer", "PatchEmbedding")

    def __init__(self, config: Pi07Config) -> None:
        self.config = config

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """The largest preset that trains unsharded in this memory; ``tiny`` on a CPU."""
        return auto_preset(device, memory_bytes_per_rank, "pi07", "small")

    @classmethod
    def parameter_counts(cls, config: Pi07Config) -> Mapping[str, int]:
        """Parameters of each part of the policy."""
        return parameter_count_by_part(config)

    def flops_per_sample(self) -> Flops:
        """Of one sample's forward, and of its part of a whole step."""
        return flops_per_sample(self.config)

    def build(self) -> "nn.Module":
        """The policy in fp32 on the current default device, the same for the same ``torch.manual_seed``."""
        from model.policy import Pi07Policy

        return Pi07Policy(self.config)

    def dataset(self, seed: int) -> "Dataset[dict[str, Tensor]]":
        """Samples that depend on ``seed`` and their index alone."""
        from model.data import Samples

        return Samples(self.config, seed)


class Pi05(Pi07):
    """A pi0.5-style policy: the same modules in another shape."""

    presets: ClassVar[Mapping[str, Mapping[str, JsonValue]]] = {
        "tiny": {**PRESETS["tiny"], **PI05_SHAPE},
        "pi05": PRESETS["pi05"],
    }

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """``pi05`` where it trains unsharded in this memory; else ``tiny``."""
        return auto_preset(device, memory_bytes_per_rank, "pi05")
