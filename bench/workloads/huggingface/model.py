"""A model of transformers as bench trains it: random weights, no cache, its own checkpointing, nothing random."""

from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import InputError
from bench.workloads.huggingface.description import LABELS, TASKS, Description, defaults_of
from bench.workloads.huggingface.workload import Options


def config_of(description: Description, options: Options) -> Any:
    """The config with what the options change. What they leave at its default, the config class may derive.

    Raises:
        InputError: the config class refuses the values.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[description.model_type]
    defaults: dict[str, Any] = {"num_labels": LABELS, **defaults_of(kind)}
    chosen = {name: value for name, value in options.model_dump(mode="json").items() if name in description.fields}
    given = {name: value for name, value in chosen.items() if name not in defaults or value != defaults[name]}
    try:
        config = kind(**given)
    except Exception as error:  # a config class may raise anything
        why = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InputError(f"{kind.__name__} refuses these values: {why}", field="workload") from error
    config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id  # as T5 does
    config.dtype = None
    return config


def model_class(task: str, config: Any) -> Any:
    """The class of transformers that is trained."""
    from transformers.models.auto import modeling_auto

    kind = getattr(modeling_auto, f"MODEL_FOR_{TASKS[task]}_MAPPING")[type(config)]
    return kind[0] if isinstance(kind, tuple) else kind


def bare(description: Description, options: Options) -> Any:
    """The model alone, in fp32 on the default device, with the attention and checkpointing of the options."""
    config = config_of(description, options)
    model = model_class(options.task, config)._from_config(config, attn_implementation=options.attention)
    if options.attention is not None and model.config._attn_implementation != options.attention:
        raise InputError(
            f"asked for attention {options.attention}, and transformers took {model.config._attn_implementation}",
            field="workload.attention",
        )
    if options.grad_ckpt:
        model.gradient_checkpointing_enable({"use_reentrant": options.use_reentrant})
    return model.train()


def trained(description: Description, options: Options) -> nn.Module:
    """The model, whose first forward is checked: it draws no random numbers, and its loss is finite.

    The loss is the model's own, a mean over labels, of which each sample has as many.

    Raises:
        InputError: of the first forward.
    """
    model: nn.Module = bare(description, options)
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
