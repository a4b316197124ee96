"""Random samples of a model of transformers: what it reads, and the labels that its loss needs.

Shapes of one sample: T tokens, L classes, N objects, H and W of a picture.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from bench.errors import InputError
from bench.workloads.huggingface.description import Description
from bench.workloads.huggingface.inputs import Inputs, Sample, collate
from bench.workloads.huggingface.lengths import Listed
from bench.workloads.huggingface.model import as_input_error
from bench.workloads.huggingface.options import Options

__all__ = ["Samples", "collate"]

LENGTH = 2**30
"""Samples of a dataset: more than any run takes."""
MASKED_SHARE = 0.15
"""Of the tokens or patches of a sample that the model restores, as BERT was trained."""
IGNORED = -100
"""The label of a token that does not count in the loss."""
OBJECTS = 4
"""Objects of a picture."""


class Samples(Dataset[Sample]):
    """Each sample depends on the seed and its index alone, and has as many counted labels as any of its length."""

    def __init__(self, description: Description, options: Options, seed: int) -> None:
        self._seed, self._task, self._lengths = seed, options.task, options.lengths
        self._longest = options.longest
        with as_input_error(f"bench cannot make a sample of {description.model_type} for {options.task}"):
            self._inputs = Inputs(description, options)
            self._inputs.check(self[0])
        if self._lengths:
            _check_lengths(self._inputs, self[0], packed=options.packed)

    def __len__(self) -> int:
        return len(self._lengths.lengths) if isinstance(self._lengths, Listed) else LENGTH

    def __getitem__(self, index: int) -> Sample:
        return self._drawn(index)

    def _drawn(self, index: int, length: int | None = None) -> Sample:
        random = Generator().manual_seed(self._seed * LENGTH + index)
        if self._lengths:
            length = length or self._lengths.of(
                index, lambda low, high: int(torch.randint(low, high + 1, (), generator=random))
            )
        sample = self._inputs.draw(random)
        if length:
            sample = {name: value[:length] for name, value in sample.items()}
        sample |= LABELS[self._task](self._inputs, sample, random)
        return sample

    def longest(self, size: int) -> list[Sample]:
        """So many of the longest samples."""
        if not isinstance(self._lengths, Listed):
            return [self._drawn(index, self._longest) for index in range(size)]
        lengths = self._lengths.lengths
        first = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:size]
        return [self[index] for index in itertools.islice(itertools.cycle(first), size)]


def _check_lengths(inputs: Inputs, sample: Sample, *, packed: bool) -> None:
    """Raise an `InputError` if samples of this model cannot be cut, or its forward cannot leave padding out."""
    others = sample.keys() - {"input_ids", "labels", "start_positions", "end_positions"}
    needed = "position_ids" if packed else "attention_mask"
    if others or needed not in inputs.taken or sample["input_ids"].ndim > 1:
        why = f"its samples hold {', '.join(sorted(others))}, too" if others else f"its forward takes no {needed}"
        raise InputError(
            f"samples of {inputs.config.model_type} cannot have many lengths: {why}",
            field="workload.seq_len",
            allowed="one integer",
        )


def padded(samples: list[Sample], pad: int) -> Sample:
    """A batch as long as its longest sample, with a mask of what is no padding."""
    batch = collate([{name: value for name, value in one.items() if not value.ndim} for one in samples])
    fill = {"input_ids": pad, "labels": IGNORED}
    for name, first in samples[0].items():
        if first.ndim:
            rows = [sample[name] for sample in samples]
            batch[name] = pad_sequence(rows, batch_first=True, padding_value=fill[name])
    masks = [torch.ones(len(sample["input_ids"]), dtype=torch.long) for sample in samples]
    return batch | {"attention_mask": pad_sequence(masks, batch_first=True)}


def packed(samples: list[Sample]) -> Sample:
    """The samples in one row, each with positions of its own, and how many tokens each has."""
    lengths = [len(sample["input_ids"]) for sample in samples]
    labels_T = torch.cat([sample["labels"] for sample in samples])
    labels_T[torch.tensor([0, *lengths[:-1]]).cumsum(0)] = IGNORED  # the last token of one does not predict the next
    return {
        "input_ids": torch.cat([sample["input_ids"] for sample in samples])[None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "labels": labels_T[None],
        "num_tokens": torch.tensor(lengths),
    }


Labels = Callable[[Inputs, Sample, Generator], Sample]


def _text(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    """The text itself; of an encoder-decoder, one that its decoder writes."""
    if "decoder_input_ids" in sample:
        return {"labels": sample["decoder_input_ids"].T.contiguous()}
    if inputs.config.is_encoder_decoder or "input_ids" not in sample:
        return _written(inputs, sample, random)
    ids_T = sample["input_ids"]
    ids_T = ids_T if ids_T.ndim == 1 else ids_T[:, 0]
    return {"labels": ids_T.masked_fill(inputs.is_placeholder(ids_T), IGNORED)}


def _transduced(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    """A text, and for the decoder the same behind a blank."""
    ids_T = inputs.ids(random)
    if "decoder_input_ids" not in inputs.taken:
        return {"labels": ids_T}
    blank = torch.tensor([inputs.find("blank_token_id", "pad_token_id", default=0)])
    return {"labels": ids_T, "decoder_input_ids": torch.cat([blank, ids_T])}


def _written(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    return {"labels": inputs.ids(random)}


def _masked(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    ids_T = sample["input_ids"].clone()
    text = (~inputs.is_placeholder(ids_T)).nonzero().flatten()
    masked = text[torch.randperm(len(text), generator=random)[: max(1, round(MASKED_SHARE * len(text)))]]
    labels_T = torch.full_like(ids_T, IGNORED)
    labels_T[masked] = ids_T[masked]
    ids_T[masked] = inputs.ids(random, len(masked))
    return {"input_ids": ids_T, "labels": labels_T}


def _class(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    return {"labels": torch.randint(inputs.config.num_labels, (), generator=random)}


def _class_of_tokens(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    return {"labels": torch.randint(inputs.config.num_labels, sample["input_ids"].shape, generator=random)}


def _classes(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    return {"labels": torch.rand(inputs.config.num_labels, generator=random)}


def _codes(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    """What a codec makes of sound: a token for each of its codebooks at each time."""
    codebooks = inputs.find("num_codebooks")
    if "input_values_cutoffs" in sample:  # of its sound, it makes the codes itself
        ids_T = sample["input_ids"]
        return {"labels": ids_T.masked_fill(~inputs.is_placeholder(ids_T), IGNORED)}
    if "audio_labels" in inputs.taken:
        return {"audio_labels": sample["audio_input_ids"]}
    if "labels_mask" in inputs.taken:  # a vector for each time, after the text
        latents_TC = torch.randn(inputs.options.longest, inputs.config.latent_dim, generator=random)
        frames = [inputs.config.audio_bos_token_id, *[inputs.config.audio_latent_token_id] * len(latents_TC)]
        return {"labels": latents_TC, "input_ids": torch.cat([sample["input_ids"], torch.tensor(frames)])}
    if codebooks is None:
        return _text(inputs, sample, random)
    vocabulary = inputs.find("vocab_size", among=getattr(inputs.config, "decoder", inputs.config))
    return {"labels": torch.randint(vocabulary, (inputs.options.longest, codebooks), generator=random)}


def _speech(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    """A spectrum of two frames for each token, and the pitch and energy of each token."""
    if "duration_labels" not in inputs.taken:
        return _text(inputs, sample, random)
    length = len(sample["input_ids"])
    pitch, energy = torch.randn(2, length, 1, generator=random)
    spectrum = torch.randn(2 * length, inputs.config.num_mel_bins, generator=random)
    durations = torch.full((length,), 2)
    labels = {"spectrogram": spectrum, "duration": durations, "pitch": pitch, "energy": energy}
    return {f"{name}_labels": value for name, value in labels.items()}


def _answer(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    if "start_positions" not in inputs.taken:
        return {"labels": torch.randint(inputs.config.num_qa_labels, (), generator=random)}
    start, end = torch.randint(len(sample["input_ids"]), (2,), generator=random).sort().values
    return {"start_positions": start, "end_positions": end}


def _objects(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    """Boxes as their middle, width and height, in parts of the picture, none of which leaves it."""
    classes_N = torch.randint(inputs.config.num_labels, (OBJECTS,), generator=random)
    middles, sizes = torch.rand(2, OBJECTS, 2, generator=random)
    boxes_N4 = torch.cat([0.25 + 0.5 * middles, 0.1 + 0.3 * sizes], dim=1)
    return {"labels": {"class_labels": classes_N, "boxes": boxes_N4}}


def _segments(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    """A mask for each object, and its class."""
    classes_N = torch.randint(inputs.config.num_labels, (OBJECTS,), generator=random)
    owners_HW = inputs.mask(random, OBJECTS)
    masks_NHW = (owners_HW == torch.arange(OBJECTS)[:, None, None]).float()
    return {"mask_labels": masks_NHW, "class_labels": classes_N}


def _map(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    return {"labels": inputs.mask(random, inputs.config.num_labels)}


def _depth(inputs: Inputs, _: Sample, random: Generator) -> Sample:
    return {"labels": 0.1 + torch.rand(inputs.size(), generator=random)}


def _pretraining(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    """What to restore; of a text, also whether its parts, or it and its picture, belong together."""
    if "pixel_values" in inputs.taken or "input_ids" not in sample:
        return _patches(inputs, sample, random)
    if inputs.config.model_type == "electra":  # which tokens were replaced
        return {"labels": torch.randint(2, sample["input_ids"].shape, generator=random)}
    text = _masked(inputs, sample, random)
    regions = len(sample.get("visual_embeds", ()))
    text["labels"] = torch.cat([text["labels"], torch.full((regions,), IGNORED)])
    pairs = ("next_sentence_label", "sentence_order_label", "sentence_image_labels")
    return text | {name: torch.tensor(1) for name in pairs if name in inputs.taken}


def _patches(inputs: Inputs, sample: Sample, random: Generator) -> Sample:
    """Which patches the model has to restore; Flava also tokens, and whether text and picture belong together."""
    height, width = inputs.size()
    patches = (height // inputs.patch()) * (width // inputs.patch())
    if "bool_masked_pos" not in inputs.taken:
        return {"noise": torch.rand(patches, generator=random)}
    masked = torch.zeros(patches, dtype=torch.bool)
    masked[torch.randperm(patches, generator=random)[: max(1, round(MASKED_SHARE * patches))]] = True
    if "codebook_pixel_values" not in inputs.taken:
        return {"bool_masked_pos": masked}
    text, side = _masked(inputs, sample, random), 2 ** (inputs.config.image_codebook_config.num_groups - 1)
    return {
        "bool_masked_pos": masked,
        "codebook_pixel_values": torch.randn(
            3, height // inputs.patch() * side, width // inputs.patch() * side, generator=random
        ),
        "input_ids_masked": text["input_ids"],
        "mlm_labels": text["labels"],
        "itm_labels": torch.tensor(1),
    }


def _nothing(*_: Any) -> Sample:
    return {}


LABELS: dict[str, Labels] = {
    "CausalLM": _text,
    "ImageTextToText": _text,
    "MultimodalLM": _text,
    "MaskedLM": _masked,
    "Seq2SeqLM": _text,
    "SpeechSeq2Seq": _text,
    "CTC": _written,
    "RNNT": _transduced,
    "TDT": _transduced,
    "AudioClassification": _class,
    "ImageClassification": _class,
    "VideoClassification": _class,
    "SequenceClassification": _class,
    "TokenClassification": _class_of_tokens,
    "QuestionAnswering": _answer,
    "VisualQuestionAnswering": _classes,
    "ObjectDetection": _objects,
    "ZeroShotObjectDetection": _objects,
    "UniversalSegmentation": _segments,
    "SemanticSegmentation": _map,
    "DepthEstimation": _depth,
    "MaskedImageModeling": _patches,
    "PreTraining": _pretraining,
    "ZeroShotImageClassification": _nothing,
    "TimeSeriesPrediction": _nothing,
    "TimeSeriesClassification": lambda *these: {"target_values": _class(*these)["labels"]},
    "Model": _nothing,
    "TextToWaveform": _codes,
    "TextToSpectrogram": _speech,
    "ImageToImage": _nothing,
    "ImageMatting": _nothing,
}
"""The labels of each task; they may replace a part of the sample."""
