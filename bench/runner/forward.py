"""Runs a workload's model on a batch: what its forward is given, in which dtype, and where its loss is."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from accelerate.utils import convert_to_fp32, recursively_apply
from torch import Tensor, nn

from bench.errors import InputError, WorkloadError
from bench.runner import oom
from bench.runner.first_forward import FirstForward
from bench.workloads import Workload

METRICS = ("loss", "mse", "ce", "l1", "accuracy")

TOKENS = "num_tokens"
"""The key of a batch that says how many tokens it trains. Only a forward that names it receives it."""

Batch = Any
"""As the workload's ``collate`` makes it, or torch's ``default_collate`` of dicts, of tuples, or of tensors."""


class Forward:
    """Calls one model in the way that its forward and its workload ask for.

    ``forward`` receives, by the kind of a sample:

    - dict, or any other mapping: its keys as keywords. A ``forward`` with ``**kwargs`` gets all of them, but for
      `TOKENS`, else those that it names as parameters. It gets the whole dict as one argument if it names none of them.
    - tuple or list: its parts; without the last one, the target, if the workload has a ``loss``.
    - tensor: the tensor.

    Values may be anything that the samples hold, nested, too.

    ``loss(output, target)`` receives the output in fp32 and the target: a tuple's last part, else the whole batch.
    """

    def __init__(self, task: Workload, model: nn.Module, device: torch.device | None = None) -> None:
        """Look at a model that is not sharded yet, and move a loss that has tensors, such as weights, to ``device``."""
        self._loss: Callable[[Any, Any], Any] | None = getattr(task, "loss", None)
        if device is not None and isinstance(self._loss, nn.Module):
            self._loss.to(device)
        self._dtype = _dtype(model) if getattr(task, "cast_inputs", True) else None
        self._refusal: Callable[[Exception], Exception | None] = getattr(task, "refusal", lambda _: None)
        self._signature = inspect.signature(model.forward)
        self._fits = False
        self._first = FirstForward(model)
        self.dropped: dict[str, str] = {}
        """The keys of samples that neither forward nor a loss got, with the dtype or type of their values."""
        parameters = self._signature.parameters.values()
        self._names = {
            one.name for one in parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        }
        self._required = {one.name for one in parameters if one.name in self._names and one.default is Parameter.empty}
        self._takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)

    def __call__(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """One pass of ``model``, the same as before or sharded since.

        Returns:
            Scalars: the loss, and those of METRICS that forward also returned.

        Raises:
            WorkloadError: the batch holds no tensors, forward does not take them, or there is no loss.
            InputError: the first time, as of `FirstForward.check`.
            Exception: of forward; the first time, what the workload says of it.
        """
        arguments, keywords, target = self._split(batch)
        first = not self._fits
        if first:
            self._check_fits(arguments, keywords)
        run = partial(self._first.run, model) if first else model
        try:
            output = made = run(*self._cast(arguments), **self._cast(keywords))
        except Exception as error:
            known = not first or isinstance(error, InputError) or oom.find(error, limited=True)
            if not known and (refusal := self._refusal(error)):
                raise refusal from error
            raise
        if self._loss is not None:
            output = self._loss(convert_to_fp32(made), target)
        scalars = _scalars(output)
        if first:
            self._first.check(scalars["loss"], scalars["loss"] if self._loss is None else made)
        return scalars

    @property
    def derives(self) -> bool:
        """Whether forward of the model computed a gradient."""
        return self._first.derives

    def _split(self, batch: Batch) -> tuple[list[Any], dict[str, Any], Any]:
        """The arguments of forward, its keywords, and the target of the loss."""
        match batch:
            case Tensor():
                return [batch], {}, batch
            case list() | tuple() if len(batch) > 1 and self._loss is not None:
                inputs, target = batch[:-1], batch[-1]
                if len(inputs) == 1 and isinstance(inputs[0], Mapping):
                    return *self._named(inputs[0], for_loss=False), target
                return list(inputs), {}, target
            case list() | tuple() if holds_tensor(list(batch)):
                return list(batch), {}, batch
            case Mapping():
                return *self._named(batch, for_loss=self._loss is not None), batch
        raise WorkloadError(
            f"a batch of the workload's dataset is a {type(batch).__name__} without a tensor",
            allowed="samples that are dicts or tuples with tensors, or tensors",
        )

    def _named(self, batch: Mapping[str, Any], *, for_loss: bool) -> tuple[list[Any], dict[str, Any]]:
        """The arguments and keywords of forward. The loss gets the batch, and may use what forward does not take."""
        names = self._names & batch.keys()
        if not names and (self._required or not self._takes_any):
            return [batch], {}
        if self._takes_any:
            return [], {key: value for key, value in batch.items() if key != TOKENS or key in names}
        if not for_loss:
            dropped = {str(key): key for key in batch if key not in names and key != TOKENS}
            self.dropped |= {name: _kind(batch[key]) for name, key in dropped.items() if name not in self.dropped}
        return [], {key: batch[key] for key in batch if key in names}

    def _check_fits(self, arguments: list[Any], keywords: dict[str, Any]) -> None:
        """Once: the samples of a dataset are alike."""
        try:
            self._signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise WorkloadError(
                f"the workload's forward{self._signature} does not take its samples: {error}",
                allowed="a dict with its parameters as keys, or a tuple; loss(output, target) takes the last part",
            ) from error
        self._fits = True

    def _cast(self, values: Any) -> Any:
        if self._dtype is None:
            return values
        return recursively_apply(lambda tensor: tensor.to(self._dtype), values, test_type=_is_floating)


def _dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype of the first floating parameter, in which forward computes. FSDP casts once more, to its own."""
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)


def holds_tensor(batch: Any) -> bool:
    """Whether there is a tensor in any of its containers."""
    found: list[Tensor] = []
    recursively_apply(found.append, batch)
    return bool(found)


def _kind(value: object) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _scalars(output: Any) -> dict[str, Tensor]:
    if isinstance(output, Mapping):
        found: dict[str, Any] = {name: output[name] for name in METRICS if output.get(name) is not None}
    else:
        found = {"loss": output if isinstance(output, Tensor) else getattr(output, "loss", None)}
    loss = found.get("loss")
    if isinstance(loss, Tensor) and loss.numel() == 1:
        scalars = {name: torch.as_tensor(value, device=loss.device) for name, value in found.items()}
        if several := next((name for name, value in scalars.items() if value.numel() != 1), None):
            raise WorkloadError(
                f"the workload's forward returned {_words(scalars[several])} as {several}, not a scalar"
            )
        return {name: value.reshape(()) for name, value in scalars.items()}
    raise WorkloadError(
        f"the workload's forward returned {_words(output)}, which holds no loss",
        allowed='a scalar, {"loss": ...}, an object with .loss; or anything, if the workload has loss(output, target)',
    )


def _words(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with {', '.join(map(str, output)) or 'nothing'}"
    return f"a {type(output).__name__}"
