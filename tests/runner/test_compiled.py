"""What torch.compile makes of units and of whole models, sharded and not. Its first stage alone: graphs, no kernels."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bench.runner.compiled import compilation

N_BLOCKS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x_BC: Tensor) -> Tensor:
        return x_BC + self.inner(x_BC).tanh()


class Talkative(Block):
    def forward(self, x_BC: Tensor) -> Tensor:
        print("a compiler cannot trace this")
        return super().forward(x_BC)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    torch._dynamo.reset()
    counters.clear()
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self, kind: type[Block]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(kind() for _ in range(N_BLOCKS)), nn.Linear(8, 1)

    def forward(self, x_BC: Tensor) -> Tensor:
        for block in self.blocks:
            x_BC = block(x_BC)
        return self.head(x_BC)  # type: ignore[no-any-return]


def model(kind: type[Block] = Block, *, sharded: bool = False) -> Model:
    made = Model(kind)
    if sharded:
        mesh = init_device_mesh("cpu", (1,))
        for unit in made.blocks:
            fully_shard(unit, mesh=mesh)
        fully_shard(made, mesh=mesh)
    return made


def linears(trained: nn.Module, compiled: list[nn.Module]) -> list[int]:
    """How many linear layers each graph holds, when ``compiled`` are compiled and ``trained`` makes two steps."""
    found: list[int] = []

    def look(graph: fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., object]:
        found.append(sum(node.op == "call_function" and "linear" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    for module in compiled:
        module.compile(backend=look)
    for _ in range(2):
        trained(torch.randn(4, 8)).sum().backward()
    return found


def test_units_of_a_sharded_model_are_graphs_without_breaks() -> None:
    sharded = model(sharded=True)
    assert set(linears(sharded, list(sharded.blocks))) == {1}
    assert compilation().graph_breaks == {}


def test_a_model_that_is_not_sharded_is_one_graph() -> None:
    plain = model()
    assert linears(plain, [plain]) == [N_BLOCKS + 1]


def test_a_sharded_model_falls_apart_into_its_units() -> None:
    """Why bench refuses `compile: model` there: hooks around each unit keep graphs from reaching over it."""
    sharded = model(sharded=True)
    assert set(linears(sharded, [sharded])) == {1}


def test_graph_breaks_are_counted_with_their_reasons() -> None:
    talkative = model(Talkative)
    assert compilation().graph_breaks == {}
    linears(talkative, [talkative])
    found = compilation()
    assert sum(found.graph_breaks.values()) > 0
    assert all(reason and "\n" not in reason for reason in found.graph_breaks)
    assert found.graphs > 1
    assert found.compile_s > 0
