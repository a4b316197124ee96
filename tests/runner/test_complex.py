"""Complex tensors: where they survive mixed precision, and where a parameter is refused."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from examples import cell
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

from bench.runner.setup import refuse_complex


class Filter(nn.Module):
    """A learned filter, as Fourier layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.complex(torch.ones(8), torch.ones(8)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_fsdp2_discards_the_imaginary_part_of_a_parameter() -> None:
    """Why it is refused."""
    model = Filter()
    fully_shard(
        model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)), mp_policy=MixedPrecisionPolicy(torch.bfloat16)
    )
    assert not model(torch.ones(8)).is_complex()


@pytest.mark.usefixtures("world")
def test_fsdp1_flattens_no_complex_parameter() -> None:
    with pytest.raises(ValueError, match="Cannot flatten integer dtype tensors"):
        FullyShardedDataParallel(nn.Sequential(nn.Linear(8, 8), Filter()), device_id=torch.device("cpu"))


@pytest.mark.parametrize(("backend", "precision"), [("fsdp", "bf16"), ("fsdp_grad_op", "no"), ("fsdp2", "bf16")])
def test_a_complex_parameter_is_refused_by_name(backend: str, precision: str) -> None:
    with pytest.raises(ValueError, match=r"0\.weights is complex, which " + backend):
        refuse_complex(cell(backend, mixed_precision=precision), nn.Sequential(Filter()))


@pytest.mark.parametrize(("backend", "precision"), [("ddp", "bf16"), ("fsdp2", "no")])
def test_elsewhere_it_is_not(backend: str, precision: str) -> None:
    refuse_complex(cell(backend, mixed_precision=precision), nn.Sequential(Filter()))
