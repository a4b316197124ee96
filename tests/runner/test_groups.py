"""What accelerate makes a group of under FSDP2, asked of its own code and held against what it really shards."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.runner.groups import groups, plugin_for, refuse_mixed, refuse_shared, shareable, units_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False)


class Model(nn.Module):
    """An embedding, two blocks, a norm and a head, with the methods by which transformers' models name two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(16, 8), nn.ModuleList([Block(), Block()])
        self.last_norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class Shares(Model):
    """As in T5: a second embedding has the weight of the first and of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Embedding(16, 8)
        self.second.weight = self.head.weight = self.embedding.weight


def made(model: nn.Module) -> list[tuple[list[str], bool]]:
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return [([names[one] for one in group.modules], group.reshards) for group in groups(model, plugin_for(("Block",)))]


BLOCKS = [(["blocks.0"], True), (["blocks.1"], True)]


def test_embedding_norm_and_head_are_groups_of_their_own() -> None:
    model = Model()
    assert made(model) == [*BLOCKS, (["embedding"], True), (["last_norm", "head"], False)]
    model.head.weight = model.embedding.weight
    assert made(model) == [*BLOCKS, (["last_norm", "embedding", "head"], False)]
    assert not isinstance(model.blocks[0], torch.distributed.fsdp.FSDPModule), "nothing was sharded"


def test_what_other_modules_share_stays_in_the_root() -> None:
    model, plugin = Shares(), plugin_for(("Block",))
    with shareable(model, plugin):
        assert made(model) == [*BLOCKS, (["last_norm"], False)]
    assert model.get_input_embeddings() is model.embedding
    plain = Model()
    with shareable(plain, plugin):
        assert len(made(plain)) == 4


def test_blocks_that_share_a_parameter_are_refused() -> None:
    model: Any = Model()
    model.blocks[1].inner.weight = model.blocks[0].inner.weight
    with (
        pytest.raises(ValueError, match=r"blocks\.0\.inner\.weight is shared .*: name a larger module"),
        shareable(model, plugin_for(("Block",))),
    ):
        pass
    with pytest.raises(ValueError, match="not all in one unit"):
        refuse_shared(model, units_of(model, ("Block",)))
    refuse_shared(model, units_of(model, ("ModuleList",)))
    with shareable(model, plugin_for(())):
        pass


def test_dtypes_that_fsdp1_cannot_flatten_together_are_refused() -> None:
    model: Any = Model()
    model.blocks[1].scaled = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(ValueError, match=r"Must flatten tensors with uniform dtype but got .*float8_e4m3fn"):
            FullyShardedDataParallel(model.blocks[1], device_id=torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    words = r"blocks\.1\.scaled of torch\.float8_e4m3fn and blocks\.1\.inner\.weight of torch\.float32 are in one unit"
    with pytest.raises(ValueError, match=words):
        refuse_mixed(model, units_of(model, ("Block",)))
    model.blocks[1].inner.to(torch.float8_e4m3fn)
    refuse_mixed(model, units_of(model, ("Block",)))
