"""A small problem that can be learned, with an embedding, hidden matrices and a head; it can write its weights."""

import os

import torch
from pydantic import BaseModel
from torch import Tensor, nn

WORDS, LENGTH, ALIKE = 32, 4, 4


class Block(nn.Module):
    """A unit: it sees its whole weights in forward, whatever shards them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x_BC: Tensor) -> Tensor:
        return x_BC + self.down(torch.tanh(self.up(x_BC)))


class Model(nn.Module):
    def __init__(self, config: "Config") -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, config.width)
        self.blocks = nn.ModuleList([Block(config.width) for _ in range(2)])
        self.head = nn.Linear(config.width, 2)
        if config.dump:
            Dump(config).of(self.blocks)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x_BC = self.embedding(batch["words"]).mean(dim=1)
        for block in self.blocks:
            x_BC = block(x_BC)
        y_B = self.head(x_BC).float().mean(dim=-1)
        return {"loss": (y_B - batch["y"]).square().mean()}


class Dump:
    """Writes the weights that each block's forward sees in one step."""

    def __init__(self, config: "Config") -> None:
        self.config, self.runs = config, 0
        self.seen: list[dict[str, Tensor]] = []

    def of(self, blocks: nn.ModuleList) -> None:
        for block in blocks:
            block.register_forward_hook(lambda block, _inputs, _output: self._look(block, len(blocks)))

    def _look(self, block: nn.Module, n_blocks: int) -> None:
        step, self.runs = self.runs // n_blocks, self.runs + 1
        if step == self.config.dump_step:
            self.seen.append({name: weight.detach().float().clone() for name, weight in block.named_parameters()})
            if len(self.seen) == n_blocks:
                torch.save(self.seen, f"{self.config.dump}.rank{os.environ.get('RANK', '0')}")


class Config(BaseModel, frozen=True, extra="forbid"):
    width: int = 32
    dump: str = ""
    """Where to write the blocks' weights, before the step ``dump_step``, counted from 0."""
    dump_step: int = 20
    ranks_alike: int = 1
    """Ranks that get the same samples, with a batch of `ALIKE`: their mean gradient is exactly that of one of them."""


class Dumps:
    Config, presets, units = Config, {}, ("Block",)
    auto_preset = classmethod(lambda cls, device, memory_bytes_per_rank: "")

    def __init__(self, config: Config) -> None:
        self.config = config

    def build(self) -> Model:
        return Model(self.config)

    def dataset(self, seed: int) -> list[dict[str, Tensor]]:
        """The mean of the words' values, from few words: learned in some dozen steps."""
        random = torch.Generator().manual_seed(seed)
        words_NL = torch.randint(WORDS, (2048, LENGTH), generator=random)
        value_W = torch.randn(WORDS, generator=random)
        samples = [{"words": words, "y": value_W[words].mean()} for words in words_NL]
        batches = [samples[first : first + ALIKE] for first in range(0, len(samples), ALIKE)]
        return [sample for batch in batches for _ in range(self.config.ranks_alike) for sample in batch]
