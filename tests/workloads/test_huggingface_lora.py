"""Adapters of low rank in models of transformers: what is trained, what it costs, and what cannot be."""

import importlib.util
from typing import Any

import pytest
import torch
from families import FAMILIES, workload
from pydantic import ValidationError
from torch import nn

from bench import workloads
from bench.errors import InputError

pytest.importorskip("peft")

RANK, WIDTH, INNER, LAYERS, TOKENS = 4, 32, 64, 2, 16
ADAPTERS = {
    # Of each layer: query and output, key and value of one head of two, and the three matrices of the gated part.
    "llama": LAYERS * RANK * (2 * 2 * WIDTH + 2 * (WIDTH + WIDTH // 2) + 3 * (WIDTH + INNER)),
    # Query, key, value and output, and two matrices; beside the layers, the one before the head.
    "bert": LAYERS * RANK * (4 * 2 * WIDTH + 2 * (WIDTH + INNER)) + RANK * 2 * WIDTH,
}


def made(model_type: str, **options: Any) -> Any:
    fields = workload(model_type, **options)
    definition = workloads.load(fields.pop("name"))
    return definition.create(definition.Config.model_validate({**fields.pop("config"), **fields}))


def loss_of(model: nn.Module, task: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**task.collate([task.dataset(seed=1)[index] for index in (0, 1)])).loss
    return loss


@pytest.mark.parametrize("model_type", ADAPTERS)
@pytest.mark.parametrize("ckpt", [{}, {"grad_ckpt": True}, {"grad_ckpt": True, "use_reentrant": True}])
def test_adapters_alone_are_trained(model_type: str, ckpt: dict[str, bool]) -> None:
    task = made(model_type, lora={"r": RANK}, **ckpt)
    torch.manual_seed(0)
    model = task.build()
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    assert all(".lora_" in name for name in trained)
    assert sum(one.numel() for one in trained.values()) == ADAPTERS[model_type]
    torch.manual_seed(0)
    assert loss_of(model, task).item() == pytest.approx(loss_of(made(model_type).build(), task).item(), rel=1e-6)
    optimizer = torch.optim.AdamW(trained.values())
    for _ in range(2):
        loss_of(model, task).backward()
        optimizer.step()
    assert all(one.grad is not None and one.grad.any() for one in trained.values())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert sum(one.numel() for one in moments) == 2 * ADAPTERS[model_type]


def test_named_targets_alone_get_adapters() -> None:
    model = made("llama", lora={"r": RANK, "targets": ["q_proj", "v_proj"]}).build()
    trained = [one.numel() for one in model.parameters() if one.requires_grad]
    assert sum(trained) == LAYERS * RANK * (2 * WIDTH + WIDTH + WIDTH // 2)


def test_flops_by_hand() -> None:
    """A frozen matrix takes two operations a token and value in forward and two in backward, an adapter six. What lies
    below the first adapter needs no gradient."""
    layer = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * INNER
    head, adapters = WIDTH * FAMILIES["llama"]["vocab_size"], ADAPTERS["llama"]
    attention = 2 * 2 * TOKENS**2 * WIDTH
    forward = 2 * TOKENS * (LAYERS * layer + head + adapters) + LAYERS * attention
    backward = 2 * TOKENS * (LAYERS * layer + head + 2 * adapters) + 2 * LAYERS * attention
    # The first layer reads frozen embeddings: nothing asks for the gradient of what its first three matrices read.
    first = 2 * TOKENS * (WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + RANK * 3 * WIDTH)
    assert made("llama", lora={"r": RANK}).flops_per_sample().step == forward + backward - first


def test_what_cannot_be_adapted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"peft cannot adapt the model: .*no_such"):
        made("llama", lora={"r": RANK, "targets": ["no_such"]}).build()
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        made("llama", lora={"r": 0})
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "bench.workloads.huggingface.options.find_spec", lambda name: None if name == "peft" else find(name)
    )
    with pytest.raises(ValidationError, match=r"lora needs the package peft: pip install 'training-bench\[lora\]'"):
        made("llama", lora={"r": RANK})
