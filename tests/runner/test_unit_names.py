"""The units of a model: those that are stated, and those that are found."""

import pytest
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from bench.errors import InputError
from bench.runner.unit_names import unit_names


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])


class Other(Block): ...


class Towers(nn.Module):
    """Two towers of the same class, each with blocks of its own."""

    def __init__(self, *blocks: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 4)
        self.towers = nn.ModuleList([nn.ModuleList([kind(), kind(), nn.Linear(4, 4)]) for kind in blocks])


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(400, 4)


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, batch_first=True)


TINY = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize(
    ("model", "units"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), ("Linear",)),
        (nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(Other(), Other())), ("Block", "Other")),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), ("Conv2d",)),
        (nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), ("TransformerEncoderLayer",)),
        (nn.Transformer(8, 2, 2, 2, batch_first=True), ("TransformerEncoderLayer", "TransformerDecoderLayer")),
        (Towers(Block, Other), ("Block", "Other")),
        (Pair(), ("Linear",)),  # in a container, and so before the repeated children of a module
        (nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))), ("Linear",)),
        (nn.Bilinear(2, 2, 2), ()),
        (nn.Sequential(nn.ReLU(), nn.ReLU()), ()),
        (GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=16)), ("GPT2Block",)),
        (T5ForConditionalGeneration(T5Config(**TINY)), ("T5Block",)),
        # Not BertEmbeddings, which it names too: the head has the same weight.
        (BertForMaskedLM(BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2)), ("BertLayer",)),
    ],
)
def test_repeated_blocks_are_found(model: nn.Module, units: tuple[str, ...]) -> None:
    assert unit_names(model, None) == units


def test_a_list_of_simple_layers_is_no_block_beside_real_ones() -> None:
    model = nn.ModuleDict(
        {
            "vision": nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))),
            "text": nn.ModuleList(nn.TransformerEncoderLayer(8, 2) for _ in range(2)),
        }
    )
    assert unit_names(nn.Sequential(model["vision"]), None) == ("Linear",)
    assert unit_names(Two(model["vision"], model["text"]), None) == ("TransformerEncoderLayer",)


class Two(nn.Module):
    def __init__(self, vision: nn.Module, text: nn.Module) -> None:
        super().__init__()
        self.vision, self.text = vision, text


def test_repeated_blocks_are_found_without_a_container() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layer(), layer()

    assert unit_names(Twice(), None) == ("TransformerEncoderLayer",)


def test_a_class_that_shares_a_weight_with_the_rest_of_the_model_is_no_unit() -> None:
    """FSDP shards each parameter with one unit. ALBERT of one group repeats no block, and its last layer is tied."""
    sizes = {"vocab_size": 96, "embedding_size": 16, "hidden_size": 32, "intermediate_size": 64}
    one, two = (
        AlbertForMaskedLM(AlbertConfig(**sizes, num_attention_heads=2, num_hidden_groups=groups)) for groups in (1, 2)
    )
    assert unit_names(one, None) == ()
    assert unit_names(two, None) == ("AlbertLayerGroup",)


def test_stated_units_are_taken_and_checked() -> None:
    model = Towers(Block)
    assert unit_names(model, ("Embedding",)) == ("Embedding",)
    assert unit_names(model, ()) == ()
    with pytest.raises(InputError, match="the workload's units name Blok, but no module of its model") as said:
        unit_names(model, ("Block", "Blok"))
    assert said.value.allowed == "Towers, Block"
