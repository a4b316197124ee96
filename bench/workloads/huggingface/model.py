"""A model of transformers as bench trains it: random weights, no cache, its own checkpointing, nothing random."""

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import InputError
from bench.workloads.huggingface.description import (
    LABELS,
    Description,
    defaults_of,
    is_random,
    mapping_of,
    still,
)
from bench.workloads.huggingface.options import Lora, Options

_TOKEN = re.compile("token_id|token_index")
DRAWS = (
    "dac",
    "gradium_phonon_tts",
    "phimoe",
    "vilt",
    "groupvit",
    "informer",
    "eomt",
    "eomt_dinov3",
    "mask2former",
    "maskformer",
    "oneformer",
    "pocket_tts",
    "reformer",
    "vibevoice",
    "vibevoice_asr",
    "videomt",
)
"""Types whose forward draws by design: phimoe and groupvit a route, vilt patches, informer queries, dac the quantizers
to use, reformer its buckets, gradium_phonon_tts, pocket_tts and vibevoice noise, others points of a mask."""


def config_of(description: Description, options: Options) -> Any:
    """The config with what the options change. What they leave at its default, the config class may derive.

    Raises:
        InputError: the config class refuses the values.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[description.model_type]
    defaults: dict[str, Any] = {"num_labels": LABELS, **defaults_of(kind)}
    chosen = {name: value for name, value in options.model_dump(mode="json").items() if name in description.fields}
    given = {name: value for name, value in chosen.items() if value != defaults.get(name)}
    with as_input_error(f"{kind.__name__} refuses these values"):
        config = kind(**given)
    for part in parts(config):
        part.use_cache = False
        for name in filter(is_random, vars(part)):
            setattr(part, name, still(vars(part)[name]))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # as T5 does
    decoder: Any = getattr(config, "decoder", None)
    if hasattr(decoder, "model_type") and not hasattr(decoder, "decoder_start_token_id"):
        decoder.decoder_start_token_id = getattr(decoder, "pad_token_id", None) or 0
    config.dtype = None
    return config


def parts(config: Any) -> Iterator[Any]:
    """A config and those in it, the outer ones first."""
    level = [config]
    while level:
        yield from level
        level = [value for part in level for value in vars(part).values() if hasattr(value, "model_type")]


@contextmanager
def as_input_error(what: str) -> Iterator[None]:
    """Any exception of transformers as a sentence; it may raise anything at a config that does not fit together."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {_words(error)}", field="workload") from error


def _words(error: Exception) -> str:
    lines = (str(error).strip() or "no message").splitlines()
    why = lines[-1]
    if isinstance(error, ImportError):  # its first line names the package, what follows is how to go on
        why = " ".join(line.strip() for line in lines).partition(" Please note")[0]
    if isinstance(error, AttributeError) and error.name is not None:
        return f"it reads {error.name}, which {type(error.obj).__name__} does not have"
    return f"{type(error).__name__}: {why}"


def refusal(description: Description, options: Options, error: Exception) -> InputError | None:
    """A sentence for an exception of a model's first forward; None if it comes from communication or a kernel."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    kinds = (AttributeError, TypeError, LookupError, ValueError, AssertionError, NotImplementedError)
    of_model = any("/transformers/" in file for file in frames) and "/torch/distributed/" not in frames[-1]
    if not of_model or not (isinstance(error, kinds) or type(error) is RuntimeError):
        return None
    config = config_of(description, options)
    name = model_class(options.task, config).__name__
    others = [task for task in description.tasks if task != options.task]
    fix = "set fields of the config that fit together" + (f", or another task: {', '.join(others)}" if others else "")
    words = getattr(config.get_text_config(), "vocab_size", None)
    outside = [name for name, token in special_tokens(config) if words is not None and token >= words]
    if isinstance(error, IndexError) and outside:
        fix = f"set {', '.join(outside)} below vocab_size, which is {words}, or vocab_size higher"
    return InputError(
        f"{name} of {description.model_type} fails on bench's samples for {options.task}: {_words(error)}",
        field="workload.config",
        fix=fix,
    )


def special_tokens(config: Any) -> list[tuple[str, int]]:
    """Fields of a config and of those in it that name a token, with the token."""
    fields = [field for part in parts(config) for field in vars(part).items()]
    return [(name, value) for name, value in fields if _TOKEN.search(name) and isinstance(value, int)]


def model_class(task: str, config: Any) -> Any:
    """The class of transformers that is trained."""
    from transformers.models.auto import modeling_auto

    with as_input_error(f"transformers cannot import {config.model_type}"):
        found = getattr(modeling_auto, mapping_of(task))[type(config)]
    return found[0] if isinstance(found, tuple) else found


def build_model(description: Description, options: Options) -> Any:
    """The model alone, in fp32 on the default device, with the attention and checkpointing of the options.

    Raises:
        InputError: transformers cannot build it so.
    """
    config = config_of(description, options)
    kind = model_class(options.task, config)
    with as_input_error(f"transformers cannot build {kind.__name__}"):
        model = kind._from_config(config, attn_implementation=options.attention)
    if options.attention is not None and model.config._attn_implementation != options.attention:
        raise InputError(
            f"asked for attention {options.attention}, and transformers took {model.config._attn_implementation}",
            field="workload.attention",
        )
    if options.grad_ckpt:
        with as_input_error(f"{kind.__name__} has no gradient checkpointing: set grad_ckpt: false"):
            model.gradient_checkpointing_enable({"use_reentrant": options.use_reentrant})
    if options.lora:
        _adapt(model, options.lora, reentrant=options.grad_ckpt and options.use_reentrant)
    _disable_dropout(model)
    _give_loss(model, options.task)
    if description.model_type in DRAWS:
        _repeat_draws(model)
    return model.train()


def _adapt(model: Any, lora: Lora, *, reentrant: bool) -> None:
    """Freeze the model, and put adapters in its place. It keeps its class, as no wrapper of peft is around it."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.targets)
    with as_input_error("peft cannot adapt the model"):
        inject_adapter_in_model(config, model)
    if reentrant:  # backward then runs only behind an input that has a gradient
        model.enable_input_require_grads()


def _disable_dropout(model: Any) -> None:
    """Stop what draws random numbers at a strength that no config sets."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name in filter(is_random, vars(module)):
            setattr(module, name, still(getattr(module, name)))


def _repeat_draws(model: Any) -> None:
    """Let each forward draw the same numbers: for models that draw some by design, which nothing can stop."""
    forks: list[Any] = []

    def enter(*_: Any) -> None:
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        forks.append(torch.random.fork_rng(devices=devices))
        forks[-1].__enter__()
        torch.manual_seed(0)

    def leave(*_: Any) -> None:
        forks.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave)


def _give_loss(model: Any, task: str) -> None:
    """Let a model without labels return a loss: that of its pairs, or a mean square of what it returns."""
    parameters = inspect.signature(model.forward).parameters
    if "return_loss" in parameters:
        model.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "return_loss": True}), with_kwargs=True
        )
    if task == "Model":
        model.register_forward_hook(_mean_square)


def _mean_square(_: Any, __: Any, output: Any) -> Any:
    """Of the last hidden state; of all numbers where there is none."""
    from transformers.modeling_outputs import SequenceClassifierOutput

    own = getattr(output, "loss", None)
    if own is not None and own.numel() == 1:
        return output
    hidden = getattr(output, "last_hidden_state", None)
    returned = [output] if isinstance(output, Tensor) else output.values() if isinstance(output, dict) else output
    parts = returned if hidden is None else [hidden]
    numbers = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    loss: Any = sum(part.float().square().mean() for part in numbers)
    if torch.is_grad_enabled() and not getattr(loss, "requires_grad", False):
        raise InputError("nothing that the model returns has a gradient: it cannot be trained", field="workload.name")
    return SequenceClassifierOutput(loss=loss)


def build_checked(description: Description, options: Options) -> nn.Module:
    """The model, whose first forward is checked: it draws no random numbers, and its loss is finite.

    The loss is the model's own, a mean over labels, of which each sample has as many.

    Raises:
        InputError: of the first forward.
    """
    model: nn.Module = build_model(description, options)
    before: list[Tensor] = []

    def starts(_module: nn.Module, _inputs: object, batch: dict[str, Tensor]) -> None:
        # On the meta device, where a plan traces the model, there are no numbers to check.
        if not next(iter(batch.values())).is_meta:
            before.append(_random_state())

    def ends(_module: nn.Module, _inputs: object, output: Any) -> None:
        if before:
            for hook in hooks:
                hook.remove()
            _check(before.pop(), output.loss)

    hooks = [model.register_forward_pre_hook(starts, with_kwargs=True), model.register_forward_hook(ends)]
    return model


def _check(before: Tensor, loss: Tensor | None) -> None:
    if not torch.equal(before, _random_state()):
        raise InputError(
            "forward drew random numbers: losses would differ between backends",
            field="workload",
            fix="set all random settings of the model's config to 0, also in nested configs",
        )
    if loss is not None and not loss.isfinite():
        raise InputError(
            f"the first loss is {loss.item()}",
            field="workload",
            fix="under CTC, give each of the seq_len labels two frames or more: raise audio_samples or lower seq_len",
        )


def _random_state() -> Tensor:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)
