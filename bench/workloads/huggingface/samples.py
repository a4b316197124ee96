"""Random samples of what a model of transformers reads, with the labels that its loss needs.

Shapes of one sample: T tokens, F frames, M mel bins.
"""

from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from bench.errors import InputError
from bench.workloads.huggingface.description import Description
from bench.workloads.huggingface.model import config_of, model_class
from bench.workloads.huggingface.workload import Options

LENGTH = 2**30
"""Samples of a dataset: more than any run takes."""
MASKED_SHARE = 0.15
"""Of the tokens of a sample for a masked language model, as BERT was trained."""
IGNORED = -100
"""The label of a token that does not count in the loss."""


class Samples(Dataset[dict[str, Tensor]]):
    """Each sample depends on the seed and its index alone, and has as many counted labels as any other."""

    def __init__(self, description: Description, options: Options, seed: int) -> None:
        self._task, self._seq_len, self._seed = options.task, options.seq_len, seed
        self._audio_samples = options.audio_samples
        self._config = config_of(description, options)
        self._input = model_class(options.task, self._config).main_input_name
        self[0]  # raises what there is to raise

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = Generator().manual_seed(self._seed * LENGTH + index)
        match self._task:
            case "CausalLM":
                ids_T = self._tokens(random)
                return {"input_ids": ids_T, "labels": ids_T}
            case "MaskedLM":
                return self._masked(random)
            case "Seq2SeqLM":
                return {"input_ids": self._tokens(random), "labels": self._tokens(random)}
            case "SpeechSeq2Seq" | "CTC":
                return {self._input: self._sound(random), "labels": self._tokens(random)}
            case "AudioClassification":
                return {self._input: self._sound(random), "labels": self._label(random)}
            case "ImageClassification":
                return {"pixel_values": self._picture(random), "labels": self._label(random)}
            case _:
                raise AssertionError(self._task)

    def _tokens(self, random: Generator) -> Tensor:
        """Ids of the vocabulary, without padding: some models give padding no position, or count it for CTC's blank."""
        vocabulary, padding = self._config.get_text_config().vocab_size, self._config.get_text_config().pad_token_id
        ids_T = torch.randint(vocabulary, (self._seq_len,), generator=random)
        return ids_T if padding is None else torch.where(ids_T == padding, (padding + 1) % vocabulary, ids_T)

    def _masked(self, random: Generator) -> dict[str, Tensor]:
        ids_T = self._tokens(random)
        masked = torch.randperm(self._seq_len, generator=random)[: max(1, round(MASKED_SHARE * self._seq_len))]
        labels_T = torch.full_like(ids_T, IGNORED)
        labels_T[masked] = ids_T[masked]
        ids_T[masked] = self._tokens(random)[masked]
        return {"input_ids": ids_T, "labels": labels_T}

    def _label(self, random: Generator) -> Tensor:
        return torch.randint(self._config.num_labels, (), generator=random)

    def _picture(self, random: Generator) -> Tensor:
        config = getattr(self._config, "vision_config", self._config)  # CLIP has one for pictures and one for text
        size: Any = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return torch.randn(config.num_channels, height, width, generator=random)

    def _sound(self, random: Generator) -> Tensor:
        config = self._config
        if self._input == "input_values" and not hasattr(config, "num_mel_bins"):
            return torch.randn(self._audio_samples, generator=random)
        if self._input == "input_features" and hasattr(config, "max_source_positions"):
            return torch.randn(config.num_mel_bins, 2 * config.max_source_positions, generator=random)  # M F
        raise InputError(
            f"bench has no samples for the {self._input} of {config.model_type}",
            field="workload.name",
            allowed="models that read a waveform, and those that read a spectrum as Whisper does",
        )
