"""The policy as `bench` sees it. torch is imported when something is built, not before."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from model.config import PRESETS, Pi07Config, auto_preset

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
        return auto_preset(device, memory_bytes_per_rank)

    def build(self) -> "nn.Module":
        """The policy in fp32 on the current default device, the same for the same ``torch.manual_seed``."""
        from model.policy import Pi07Policy

        return Pi07Policy(self.config)

    def dataset(self, seed: int) -> "Dataset[dict[str, Tensor]]":
        """Samples that depend on ``seed`` and their index alone."""
        from model.data import Samples

        return Samples(self.config, seed)
