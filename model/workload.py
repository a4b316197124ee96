"""The policy as a workload of `bench`. torch is imported only when something is built."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pydantic import JsonValue

from bench.model.config import PI05_SHAPE, PRESETS, Pi07Config
from bench.model.counts import Flops, auto_preset, flops_per_sample, parameter_count_by_part, tokens_per_sample

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset


class Pi07:
    """A pi0.7-style policy on synthetic episodes."""

    Config: ClassVar[type[Pi07Config]] = Pi07Config
    presets: ClassVar[Mapping[str, Mapping[str, JsonValue]]] = PRESETS
    # Small, so that a batch search reaches the limit in seconds.
    cpu_memory_limits: ClassVar[Mapping[str, int]] = {"tiny": 320 * 2**20}
    cast_inputs: ClassVar[bool] = False  # the policy keeps its targets in fp32
    equal_samples: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = ("InterleavedLayer", "VisionLayer", "PatchEmbedding")
    cost_options: ClassVar[tuple[str, ...]] = ("attention", "grad_ckpt", "branch_sync")

    def __init__(self, config: Pi07Config) -> None:
        self.config = config

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """The largest preset that fits at 18 bytes a parameter; ``tiny`` on a CPU."""
        return auto_preset(device, memory_bytes_per_rank, "pi07", "small")

    parameter_counts = staticmethod(parameter_count_by_part)

    def flops_per_sample(self) -> Flops:
        """Operations of one sample: forward only, its share of a step, and what is recomputed."""
        return flops_per_sample(self.config)

    def tokens_per_sample(self) -> int:
        """Length of a sample's sequence, with every optional part present."""
        return tokens_per_sample(self.config)

    def build(self) -> "nn.Module":
        """The policy in fp32 on the default device; the same weights for the same ``torch.manual_seed``."""
        import torch

        from bench.model.policy import Pi07Policy

        policy = Pi07Policy(self.config)
        for name, parameter in policy.named_parameters():
            if not parameter.is_meta:
                self.draw(name, torch.initial_seed(), 0, parameter.data.view(-1))
        return policy

    def draw(self, name: str, seed: int, start: int, out: "Tensor") -> None:
        """Write the initial values of the flattened parameter ``name`` from index ``start`` on into ``out``."""
        from bench.model import weights

        constant = self._constants.get(name)
        if constant is not None:
            out.fill_(constant)
        else:
            weights.draw(f"{seed}/{name}", start, out)

    @cached_property
    def _constants(self) -> dict[str, float]:
        import torch

        from bench.model.policy import Pi07Policy
        from bench.model.weights import constants

        with torch.device("meta"):
            return constants(Pi07Policy(self.config))

    def dataset(self, seed: int) -> "Dataset[dict[str, Tensor]]":
        """Samples that depend only on ``seed`` and their index."""
        from bench.model.data import Samples

        return Samples(self.config, seed)


class Pi05(Pi07):
    """A pi0.5-style policy: the same modules with other sizes."""

    presets: ClassVar[Mapping[str, Mapping[str, JsonValue]]] = {
        "tiny": {**PRESETS["tiny"], **PI05_SHAPE},
        "pi05": PRESETS["pi05"],
    }

    @classmethod
    def auto_preset(cls, device: str, memory_bytes_per_rank: int) -> str:
        """``pi05`` if it fits at 18 bytes a parameter, otherwise ``tiny``."""
        return auto_preset(device, memory_bytes_per_rank, "pi05")
