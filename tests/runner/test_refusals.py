"""Models that a backend cannot train: the error of torch, accelerate or DeepSpeed, and the message in its place."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import cell
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.errors import InputError, WorkloadError
from bench.runner import refusals
from bench.runner.refusals import (
    FSDP2_CASTS_COMPLEX,
    check_built,
    check_grown,
    check_loss,
    explained,
    refuse_untrainable,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ELSEWHERE = [("single", "bf16"), ("ddp", "bf16"), ("ddp", "no")]
SHARDED = ["fsdp", "fsdp2", "zero1", "zero2", "zero3"]


def refuse(model: nn.Module, backend: str, precision: str = "bf16", device: torch.device = CPU, **train: Any) -> None:
    refuse_untrainable(cell(backend, mixed_precision=precision, train=train), device, model)


def refused(model: nn.Module, backend: str, precision: str = "bf16", **train: Any) -> str:
    with pytest.raises(InputError) as raised:
        refuse(model, backend, precision, **train)
    return raised.value.problem


@pytest.fixture
def world() -> Iterator[None]:
    """The first of two ranks, of which the other sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def sharded(model: nn.Module, *units: nn.Module) -> nn.Module:
    """As accelerate does under FSDP2 in bf16."""
    mesh, low = dist.device_mesh.init_device_mesh("cpu", (2,)), MixedPrecisionPolicy(torch.bfloat16)
    for module in (*units, model):
        fully_shard(module, mesh=mesh, mp_policy=low)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.jit.script(nn.Linear(2, 2)), "the whole model of the workload is scripted"),
        (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), "the whole model of the workload is scripted"),
        (lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(2, 2))), "the module 1 of the workload is scr"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "the module 0 .* no shape yet: LazyLinear gets it from its first"),
        (lambda: nn.Sequential(nn.LazyBatchNorm1d(affine=False)), "the module 0 .* no shape yet: LazyBatchNorm1d"),
        (lambda: nn.Linear(2, 2, device="meta"), "the parameter weight .* on torch's meta device"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no parameter that requires a gradient"),
        (nn.ReLU, "no parameter that requires a gradient"),
    ],
)
def test_what_no_backend_trains_is_a_mistake_of_the_workload(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        check_built(make(), draws=False)


@pytest.mark.parametrize("model", [None, lambda x: x, (nn.Linear(2, 2), nn.Linear(2, 2))])
def test_a_model_is_one_module(model: Any) -> None:
    with pytest.raises(WorkloadError, match=f"the workload's model is a {type(model).__name__}, not a torch.nn.Module"):
        check_built(model, draws=False)


def test_a_parameter_that_forward_makes_is_named() -> None:
    class Late(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.scale = nn.Parameter(torch.ones(2))
            return super().forward(x) * self.scale

    model = Late(2, 2)
    with (
        pytest.raises(WorkloadError, match="forward of the workload's model made the parameter scale"),
        check_grown(model),
    ):
        model(torch.ones(2, 2))
    with check_grown(model):
        model(torch.ones(2, 2))


def test_a_lazy_module_that_was_called_and_parameters_to_be_drawn_pass() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    model(torch.ones(1, 3))
    check_built(model, draws=False)
    check_built(nn.Linear(2, 2, device="meta"), draws=True)


@pytest.mark.parametrize("loss", [torch.ones(2).sum(), torch.tensor([1, 2]).argmax()])
def test_a_loss_without_a_gradient_is_one(loss: Tensor) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(WorkloadError, match="the workload's loss has no gradient"):
        check_loss(loss)
    check_loss(torch.ones(2, requires_grad=True).sum())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_neither_clipped_nor_stepped_by_adam(kind: type[nn.Embedding]) -> None:
    model = nn.Sequential(kind(8, 4, sparse=True), nn.Linear(4, 4))
    model(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises(NotImplementedError, match=r"'aten::linalg_vector_norm' .* 'SparseCPU'"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
        torch.optim.AdamW(model.parameters()).step()
    said = refused(model, "ddp")
    assert said == (
        "the embedding 0 has sparse=True, and such gradients need train.optimizer: torch.optim:SGD,"
        " train.weight_decay: 0, train.max_grad_norm: null; or leave it out"
    )
    assert "need train.max_grad_norm: null; or" in refused(model, "single", optimizer="torch.optim:SGD")
    # What the message asks for.
    torch.optim.SGD(model.parameters(), weight_decay=0).step()
    refuse(model, "ddp", optimizer="torch.optim:SGD", weight_decay=0.0, max_grad_norm=None)
    refuse(nn.Sequential(kind(8, 4, sparse=True)).requires_grad_(False), "fsdp2")


@pytest.mark.parametrize("backend", SHARDED)
def test_sharding_takes_no_sparse_gradients(backend: str) -> None:
    said = refused(nn.Sequential(nn.Embedding(8, 4, sparse=True)), backend, max_grad_norm=None)
    assert "such gradients need backend: ddp or single; or leave it out" in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.ones(()), "the parameter odd: it has no dimension"),
        (torch.ones(16, 8).t(), "the parameter odd: it is not contiguous, with the shape (8, 16)"),
        (
            torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last),
            "is not contiguous, with the shape (4, 3, 2, 2)",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_parameter_that_deepspeed_cannot_broadcast_is_named(values: Tensor, dtype: torch.dtype, words: str) -> None:
    model = nn.Linear(2, 2)
    model.odd = nn.Parameter(values)
    model = model.to(dtype)
    with pytest.raises(RuntimeError, match="to view"):
        model.odd.data.view(torch.uint8)  # as DeepSpeed does
    assert words in refused(model, "zero2")


def test_other_parameters_pass() -> None:
    model = nn.Linear(2, 2)
    model.rows = nn.Parameter(torch.ones(8, 16)[:, :8])
    model.none = nn.Parameter(torch.ones(0, 2), requires_grad=False)
    refuse(model.bfloat16(), "zero2")
    model.odd = nn.Parameter(torch.ones(16, 8).t())
    for backend in ("single", "ddp", "fsdp"):
        refuse(model, backend)


def test_a_parameter_that_fully_shard_cannot_take_is_named() -> None:
    model = nn.Linear(2, 2)
    model.odd = nn.Parameter(torch.ones(16, 8).t())
    assert refused(model, "fsdp2").startswith("fsdp2 cannot take the parameter odd: it is not contiguous")


@pytest.mark.usefixtures("world")
def test_fsdp_takes_no_parameter_without_a_dimension() -> None:
    model = nn.Linear(2, 2)
    model.temperature = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="doesn't support scalar parameters"):
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    for backend in ("fsdp", "fsdp2"):
        assert f"{backend} cannot take the parameter temperature: it has no dimension" in refused(model, backend)
    refuse(model, "ddp")


@pytest.mark.usefixtures("world")
def test_fsdp1_flattens_no_integers() -> None:
    model = nn.ParameterDict({"ids": nn.Parameter(torch.arange(3), requires_grad=False), "x": torch.ones(2)})
    with pytest.raises(ValueError, match="Cannot flatten integer dtype tensors"):
        FullyShardedDataParallel(model, device_id=CPU)
    assert refused(model, "fsdp") == "fsdp cannot take the parameter ids: it is int64; make it a buffer"
    for backend in ("ddp", "fsdp2", "zero3"):
        refuse(model, backend)


def test_gloo_sends_no_float8() -> None:
    model = nn.Linear(2, 2)
    model.scaled = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="Invalid scalar type"):
            nn.parallel.DistributedDataParallel(model)
    finally:
        dist.destroy_process_group()
    assert "the parameter scaled: it is float8_e4m3fn, which gloo does not send" in refused(model, "ddp")
    refuse(model, "ddp", device=GPU)


class Filter(nn.Module):
    """A learned filter, as Fourier layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.complex(torch.ones(8), torch.ones(8)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


@pytest.mark.usefixtures("world")
def test_fsdp2_shards_complex_parameters_that_are_alone_and_names_both_dtypes_elsewhere() -> None:
    alone, mixed = sharded(Filter()), sharded(nn.Sequential(nn.Linear(8, 8), Filter()))
    assert alone(torch.ones(8)).is_complex() != FSDP2_CASTS_COMPLEX
    words = r"name smaller modules in `units`\nFSDP expects uniform original parameter dtype .*complex64"
    with pytest.raises(AssertionError, match=words), explained(cell("fsdp2", mixed_precision="no"), mixed):
        mixed(torch.ones(8))


@pytest.mark.usefixtures("world")
def test_fsdp1_flattens_no_complex_parameter() -> None:
    with pytest.raises(ValueError, match="Cannot flatten integer dtype tensors"):
        FullyShardedDataParallel(Filter(), device_id=CPU)


@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        ("fsdp", "bf16"),
        ("fsdp_grad_op", "no"),
        ("fsdp2", "bf16"),
        ("fsdp2", "fp16"),
        ("zero2", "bf16"),
        ("zero3", "no"),
    ],
)
def test_a_complex_parameter_is_refused_by_name(backend: str, precision: str) -> None:
    said = refused(nn.Sequential(Filter()), backend, precision)
    assert said.startswith(f"{backend} cannot take the parameter 0.weights: it is complex64; make it a buffer, or")


def test_fsdp2_of_an_older_torch_discards_the_imaginary_part_of_a_frozen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Filter().requires_grad_(False)
    monkeypatch.setattr(refusals, "FSDP2_CASTS_COMPLEX", False)
    refuse(frozen, "fsdp2")
    monkeypatch.setattr(refusals, "FSDP2_CASTS_COMPLEX", True)
    assert "the parameter weights: it is complex64" in refused(frozen, "fsdp2")


@pytest.mark.parametrize(("backend", "precision"), [*ELSEWHERE, ("fsdp2", "no")])
def test_elsewhere_it_is_not(backend: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "FSDP2_CASTS_COMPLEX", precision == "no")
    refuse(nn.Sequential(Filter()), backend, precision)


class Outside(nn.Module):
    """Uses a weight of its first part where that part does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.part(x))
        return y + self.part.weight.square().mean()


class Derived(nn.Module):
    """Its output has a derivative of another one, as in networks that solve equations."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        y: Tensor = self.head(self.part(x))
        return y + torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("model", "error"), [(Outside(), "got mixed torch.Tensor and DTensor"), (Derived(), "storage of size 0")]
)
def test_a_weight_that_fsdp2_has_not_gathered_is_explained(model: Any, error: str) -> None:
    with (
        pytest.raises(RuntimeError, match=rf"(?s)^FSDP2 gathers the weights of a unit .* `units = \(\)`\n.*{error}"),
        explained(cell("fsdp2"), sharded(model, model.part)),
    ):
        model(torch.ones(2, 8)).sum().backward()


@pytest.mark.parametrize("derives", [False, True])
def test_a_derivative_that_zero3_passes_twice_is_explained(derives: bool) -> None:
    freed = torch.ones(0)
    forward: Any = SimpleNamespace(derives=derives)
    words = r"^ZeRO-3 gathers .* such as zero2 or fsdp\nmat2 must be" if derives else "^mat2 must be a matrix"
    with pytest.raises(RuntimeError, match=words), explained(cell("zero3"), nn.Linear(2, 2), forward):
        torch.ones(2, 2).mm(freed)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("part", "named"),
    [
        (nn.BatchNorm1d(8), "1"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), r"1\.parametrizations\.weight\.0"),
        (nn.utils.spectral_norm(nn.Linear(8, 8)), "1"),
    ],
)
def test_buffers_that_fsdp2_leaves_in_fp32_are_named(part: nn.Module, named: str) -> None:
    model = sharded(nn.Sequential(nn.Linear(8, 8), part))
    words = (
        rf"^{named} has fp32 buffers, which FSDP2 does not cast to bfloat16 .*no, or a norm without buffers\n.*Float"
    )
    with pytest.raises(RuntimeError, match=words), explained(cell("fsdp2", mixed_precision="bf16"), model):
        model(torch.ones(2, 8))


@pytest.mark.parametrize(("backend", "train"), [("zero2", {}), ("fsdp", {}), ("ddp", {"weights": "bf16"})])
def test_weights_in_bf16_without_autocast_are_explained(backend: str, train: dict[str, str]) -> None:
    model, pixels = nn.Linear(2, 2).bfloat16(), torch.ones(2, 2, dtype=torch.uint8)
    words = r"^a weight is bfloat16 .*, without autocast: .*\nmat1 and mat2 must have the same dtype"
    with pytest.raises(RuntimeError, match=words), explained(cell(backend, train=train), model):
        model(pixels / 255)


def test_a_batch_of_one_sample_is_explained() -> None:
    words = r"^BatchNorm needs several samples on each rank: .* in a search\nExpected more than 1 value per channel"
    with pytest.raises(ValueError, match=words), explained(cell("ddp"), model := nn.BatchNorm1d(4)):
        model(torch.ones(1, 4))


@pytest.mark.parametrize("backend", ["ddp", "fsdp2"])
def test_other_errors_stay_as_they_are(backend: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 must have the same dtype"), explained(cell(backend), model):
        model(torch.ones(2, 2, dtype=torch.float64))
