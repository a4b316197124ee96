"""Complex tensors: where they survive mixed precision, and where a parameter is refused."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from examples import cell
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.runner import setup
from bench.runner.setup import FSDP2_CASTS_COMPLEX, refuse_complex


class Filter(nn.Module):
    """A learned filter, as Fourier layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.complex(torch.ones(8), torch.ones(8)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


@pytest.fixture
def world() -> Iterator[None]:
    """The first of two ranks, of which the other sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_fsdp2_shards_complex_parameters_that_are_alone_and_names_both_dtypes_elsewhere() -> None:
    mesh, low = dist.device_mesh.init_device_mesh("cpu", (2,)), MixedPrecisionPolicy(torch.bfloat16)
    alone, mixed = Filter(), nn.Sequential(nn.Linear(8, 8), Filter())
    for model in (alone, mixed):
        fully_shard(model, mesh=mesh, mp_policy=low)
    assert alone(torch.ones(8)).is_complex() != FSDP2_CASTS_COMPLEX
    with pytest.raises(AssertionError, match=r"uniform original parameter dtype .*complex64"):
        mixed(torch.ones(8))


@pytest.mark.usefixtures("world")
def test_fsdp1_flattens_no_complex_parameter() -> None:
    with pytest.raises(ValueError, match="Cannot flatten integer dtype tensors"):
        FullyShardedDataParallel(Filter(), device_id=torch.device("cpu"))


@pytest.mark.parametrize(("backend", "precision"), [("fsdp", "bf16"), ("fsdp_grad_op", "no")])
def test_a_complex_parameter_is_refused_by_name(backend: str, precision: str) -> None:
    with pytest.raises(ValueError, match=r"0\.weights is complex, which " + backend):
        refuse_complex(cell(backend, mixed_precision=precision), nn.Sequential(Filter()))


def test_fsdp2_of_an_older_torch_discards_the_imaginary_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "FSDP2_CASTS_COMPLEX", True)
    with pytest.raises(ValueError, match=r"0\.weights is complex, of which fsdp2 keeps the real part alone"):
        refuse_complex(cell("fsdp2", mixed_precision="bf16"), nn.Sequential(Filter()))


@pytest.mark.parametrize(("backend", "precision"), [("ddp", "bf16"), ("fsdp2", "bf16"), ("fsdp2", "no")])
def test_elsewhere_it_is_not(backend: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "FSDP2_CASTS_COMPLEX", precision == "no")
    refuse_complex(cell(backend, mixed_precision=precision), nn.Sequential(Filter()))
