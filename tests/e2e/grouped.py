"""Models with more groups under FSDP2 than their blocks: an embedding that is shared, and a model of transformers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

VOCABULARY, WIDTH, TOKENS = 4096, 64, 16
CONFIG = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


class Shared(nn.Module):
    """Encoder, decoder and head have modules of their own for one weight, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.write.weight = self.head.weight = self.read.weight
        nn.init.normal_(self.read.weight, std=0.1)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, batch_first=True) for _ in "ab")

    def get_input_embeddings(self) -> nn.Module:
        return self.read

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x_BTD = self.read(input_ids) + self.write(labels)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return cross_entropy(self.head(x_BTD).float().flatten(0, 1), labels.flip(1).flatten())


def llama(*, tied: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    fields: dict[str, Any] = {**CONFIG, **HEADS, "tie_word_embeddings": tied, "use_cache": False}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**fields))
    return model


def grouped(kind: str = "shared") -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """A model of the kind ``shared``, ``llama`` or ``tied_llama``, and tokens."""
    model = Shared() if kind == "shared" else llama(tied=kind == "tied_llama")
    ids_NT = torch.randint(VOCABULARY, (16, TOKENS), generator=torch.Generator().manual_seed(3))
    return model, [{"input_ids": ids_T, "labels": ids_T} for ids_T in ids_NT]
