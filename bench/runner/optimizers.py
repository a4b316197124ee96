"""The optimizer that a cell names, over the parameters of its model."""

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from bench.errors import InputError
from bench.records.cell import Train


def optimizer_of(train: Train, model: nn.Module, units: tuple[str, ...], device: str = "cpu") -> Optimizer:
    """The optimizer of all parameters of ``model`` that are trained.

    Args:
        device: the type of the device that will step them; they may get there later.

    Raises:
        InputError: ``train.optimizer`` cannot be loaded or made, or there is no matrix for Muon.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    match train.optimizer:
        case "adamw":
            return _adamw(train, trained, device)
        case "muon":
            return _muon(train, model, units, trained, device)
        case name:
            return _named(name, train, trained)


def _adamw(train: Train, parameters: list[nn.Parameter], device: str) -> AdamW:
    # On a GPU, torch would choose foreach, which is slower and holds another copy of the masters during its step.
    by_default = train.fused is None and train.foreach is None and device != "cpu" and train.offload == "none"
    by_default = by_default and all(parameter.is_floating_point() for parameter in parameters)  # fused takes no complex
    return AdamW(
        parameters,
        lr=train.learning_rate,
        weight_decay=train.weight_decay,
        fused=True if by_default else train.fused,
        foreach=train.foreach,
    )


def _muon(
    train: Train, model: nn.Module, units: tuple[str, ...], trained: list[nn.Parameter], device: str
) -> Optimizer:
    """Muon for the matrices of hidden layers, AdamW for the rest, at one learning rate.

    Updates are scaled to AdamW's usual size (arXiv:2502.16982, section 2.2), so that both share their settings.
    """
    from bench.runner.muon import GatheredMuon, Together, matrices  # torch before 2.9 has no Muon

    chosen = list(matrices(model, units))
    if not chosen:
        raise InputError(
            f"muon finds no matrix to update in the workload's units ({', '.join(units) or 'none'})",
            field="train.optimizer",
            fix="name the classes of the model's layers in the workload's units, or use adamw",
        )
    muon = GatheredMuon(chosen, lr=train.learning_rate, weight_decay=train.weight_decay, adjust_lr_fn="match_rms_adamw")
    taken = {id(parameter) for parameter in chosen}
    rest = [parameter for parameter in trained if id(parameter) not in taken]
    return Together(muon, _adamw(train, rest, device)) if rest else muon


def _named(name: str, train: Train, parameters: list[nn.Parameter]) -> Optimizer:
    """The user's own, ``module:Class``, found in the current folder too."""
    module, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        make: Any = getattr(importlib.import_module(module), attribute)
        optimizer = make(parameters, lr=train.learning_rate, weight_decay=train.weight_decay)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"cannot make {name!r}: {type(error).__name__}: {error}",
            field="train.optimizer",
            fix="bench calls it with the parameters, lr= and weight_decay=; install its module, or run bench from the"
            " folder that contains it",
        ) from error
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"{name!r} made a {type(optimizer).__name__}, not a torch.optim.Optimizer", field="train.optimizer"
        )
    return optimizer
