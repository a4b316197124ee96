"""What a model of transformers reads, drawn at random from its config alone: text, pictures, sound, series.

A sample holds what the forward of the model's class takes, under the names of forward's parameters: `INPUTS` says what
each is. There is no tokenizer and no processor: tokens that stand for a picture or a sound are as many as the model's
own tower makes of it.

Shapes of one sample: T tokens, C channels, H and W of a picture, P patches, F frames, M mel bins.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.utils.data import default_collate

from bench.errors import InputError
from bench.workloads.huggingface.description import Description
from bench.workloads.huggingface.model import build_model, config_of, model_class, parts, special_tokens
from bench.workloads.huggingface.options import LENGTHS, Options

PICTURE = 224
"""Height and width of a picture where neither config nor options say it."""
FRAMES = 8
"""Pictures of a video where the config does not say it."""
REGIONS = 36
"""Regions of a picture that a detector has found, for models that read those."""
CHARACTERS = 256
"""The vocabulary of a model that reads characters."""
CHANNELS_FIRST = ("clvp", "dots3_note", "glmasr", "glmasr_encoder", "voxtral_realtime")
"""Types that read a spectrum of any length as (M, F)."""
HOP = 160
"""Samples of sound for each frame of a spectrum: 10 ms at 16 kHz."""
PLACEHOLDERS = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}
"""What configs call the token that stands for a part of a picture, a video or a sound."""
LANGUAGE = ("language_model", "text_model", "lm_head")
"""What multimodal models call their parts that see text alone."""
GRIDS = {"image_grid_hw", "image_grid_thw", "image_position_ids", "target_sizes"}
"""Parameters of a forward that reads a picture as patches of any number, and says where they lie."""
SEVERAL_PICTURES = ("idefics", "idefics2", "idefics3", "smolvlm")
"""Types whose samples have a list of pictures."""
CODECS = (
    "dac",
    "encodec",
    "higgs_audio_v2_tokenizer",
    "mimi",
    "pe_audio",
    "pocket_tts_audio_tokenizer",
    "vibevoice",
    "vibevoice_asr",
    "xcodec",
)
"""Types that read sound channel by channel."""
PHRASES = (101, 1012, 1029, 102)
"""BERT's tokens between phrases that a detector looks for: a text starts with the first, a phrase ends with the second.
"""
PROTEIN = 128
"""Residues of a protein."""
ENTITIES = 4
"""Entities that a text mentions, for models that read those beside it."""

Sample = dict[str, Any]


def collate(samples: list[Sample]) -> Sample:
    """A batch: tensors stacked, patches of all pictures in one row, and a list of what is a dict for each sample."""
    batch: Sample = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        blocks = isinstance(first, Tensor) and first.ndim == 5 and "aspect_ratio_ids" not in samples[0]
        patches = blocks or not {"image_grid_hw", "image_grid_thw"}.isdisjoint(samples[0])
        if name == "pixel_values" and "target_sizes" in samples[0]:  # one picture, as wide as all patches
            batch[name] = torch.cat(values, dim=-1)[None]
        elif name == "pixel_values" and patches:
            batch[name] = torch.cat(values)
        else:
            batch[name] = values if isinstance(first, dict) else default_collate(values)
    return batch


class Inputs:
    """What one model reads, drawn at random."""

    def __init__(self, description: Description, options: Options) -> None:
        self.options = options
        self.config = config_of(description, options)
        self.kind = model_class(options.task, self.config)
        self.taken = inspect.signature(self.kind.forward).parameters
        self.text = _section(self.config, "text_config", "text_encoder", "decoder", "thinker_config")
        self.vision = _section(self.config, "vision_config", "vision_encoder", "backbone_config", "encoder")
        self.audio = _section(self.config, "audio_config", "audio_encoder", "encoder_config", "encoder")
        names = [name for name in INPUTS if name in self.taken and name not in self._left_out()]
        self._names = sorted(names, key=lambda name: name == "input_ids")
        self._check_length()
        self._phrases = self.config.num_labels if options.task == "ZeroShotObjectDetection" else 0
        if options.longest < 3 * self._phrases:
            raise InputError(
                f"a text of {options.longest} tokens has no place for the {self._phrases} phrases to look for",
                field="workload.seq_len",
                fix=f"raise it to {3 * self._phrases}, or lower num_labels",
            )
        special = self._special_ids()
        self._special = torch.tensor(sorted(special), dtype=torch.long)
        self._plain = next(token for token in range(len(special) + 1) if token not in special)
        self._placeholders: dict[int, int] = {}
        self._length = options.longest
        pairs = "return_loss" in self.taken or hasattr(self.kind, "get_text_features")
        if "input_ids" in names and len(names) > 1 and not pairs:
            self._placeholders = self._count_placeholders(description)

    def _check_length(self) -> None:
        """Raise an `InputError` if the model has no position for the end of a text."""
        if "input_ids" not in self._names:
            return
        for name in LENGTHS:
            limit = getattr(self.text, name, None)
            if isinstance(limit, int) and 0 < limit < self.options.longest:  # -1: any length
                raise InputError(
                    f"seq_len={self.options.longest} is more than {name}={limit} of the model",
                    field="workload.seq_len",
                    fix=f"set seq_len: {limit}",
                )

    def draw(self, random: Generator) -> Sample:
        """One sample without its labels."""
        sample: Sample = {}
        for name in self._names:
            value = INPUTS[name](self, random)
            sample |= value if isinstance(value, dict) else {name: value}
        return sample

    def _count_placeholders(self, description: Description) -> dict[int, int]:
        """The token that stands for a part of a picture or sound, and how many of them stand for those of a sample."""
        counts: dict[int, int] = {}
        if "image_embeds_position_mask" in self.taken:
            return {1: self.config.latent_query_num}
        if self.config.model_type == "qwen2_audio":  # its tower is not apart
            return {self.config.audio_token_index: self.config.audio_config.max_source_positions // 2}
        if "audio_labels" in self.taken:
            return {self.config.audio_token_id: self.options.longest}
        if self.config.model_type == "csm":
            codec = self.config.codec_config
            frames = math.ceil(self.options.audio_samples * codec.frame_rate / codec.sampling_rate)
            return {self.config.audio_token_id: frames}
        tokens = {modality: self.find(*fields) for modality, fields in PLACEHOLDERS.items()}
        with _unsharded(), torch.device("meta"):
            model = build_model(description, self.options)
        sample = self.draw(Generator().manual_seed(0))
        batch = collate([{name: value for name, value in sample.items() if name not in TEXTS}])
        if self.config.model_type == "voxtral_realtime":
            self._length = _features(model, "audio", batch)
            return {}
        for modality, token in tokens.items():
            count = _features(model, modality, batch)
            if count and token is None:
                raise InputError(
                    f"{self.config.model_type}'s config does not say which token stands for a part of the {modality}",
                    field="workload.config",
                    fix=f"set {PLACEHOLDERS[modality][0]}",
                )
            counts[token] = count
        return {token: count for token, count in counts.items() if count}

    def _left_out(self) -> set[str]:
        """Inputs that stand for others of the same sample."""
        names = {"pixel_values_videos"} if "pixel_values" in self.taken else set()
        if getattr(self.config, "audio_config", self) is None:
            names |= {"input_features"}
        if getattr(self.config, "vision_config", self) is None:
            names |= {"pixel_values", "pixel_values_videos"}
        if self.config.model_type not in SEVERAL_PICTURES:
            names |= {"image_attention_mask"}
        if self.config.model_type != "trocr":  # a decoder alone
            names |= {"encoder_hidden_states"}
        if not hasattr(self.config, "max_action_dim"):  # what a recurrent model remembers
            names |= {"state"}
        if self.config.model_type == "pop2piano":  # reads a spectrum in the place of text
            names |= {"input_ids"}
        if self.config.model_type == "speech-encoder-decoder":
            names |= {"input_features" if hasattr(self.audio, "conv_dim") else "input_values"}
        return names

    def find(self, *names: str, among: Any = None, default: Any = None) -> Any:
        """The first of these fields that the config has, or one in it."""
        for part in parts(self.config if among is None else among):
            for name in names:
                if (value := getattr(part, name, None)) is not None:
                    return value
        if among is not None:
            return self.find(*names, default=default)
        return default

    def check(self, sample: Sample) -> None:
        """Raise an `InputError` if forward cannot run without something that no sample holds."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        needed = [name for name, one in self.taken.items() if one.default is one.empty and one.kind in kinds]
        if missing := [name for name in needed if name not in sample and name != "self"]:
            raise InputError(
                f"bench has no samples for {', '.join(missing)}, which the forward of {self.kind.__name__} needs",
                field="workload.name",
                fix="train the model type that it is a part of",
            )

    # Text.

    def vocabulary(self) -> int:
        return int(self.find("vocab_size", "text_vocab_size", among=self.text, default=CHARACTERS))

    def ids(self, random: Generator, length: int | None = None) -> Tensor:
        """Ids without special ones: some models give padding no position, or count it as CTC's blank."""
        ids_T = torch.randint(self.vocabulary(), (length or self.options.longest,), generator=random)
        return torch.where(torch.isin(ids_T, self._special), self._plain, ids_T)

    def _special_ids(self) -> set[int]:
        common = ("bos", "eos", "decoder_start")
        ids = {token for name, token in special_tokens(self.config) if not name.startswith(common)}
        return ids | {0, *PHRASES} if self._phrases else ids

    def input_ids(self, random: Generator) -> Tensor:
        """Text, with the tokens that stand for pictures and sounds after its first one."""
        ids_T = self.ids(random, self._length)
        if self.config.model_type == "kyutai_speech_to_text":  # reads what is said beside what it wrote
            codes = torch.randint(
                self.config.codebook_vocab_size, (len(ids_T), self.config.num_codebooks), generator=random
            )
            return torch.cat([ids_T[:, None], codes], dim=1)
        if self._phrases:
            ids_T[0] = PHRASES[0]
            ids_T[len(ids_T) // self._phrases - 1 :: len(ids_T) // self._phrases] = PHRASES[1]
        middle = [torch.full((count,), token) for token, count in self._placeholders.items()]
        return torch.cat([ids_T[:1], *middle, ids_T[1:]])

    def is_placeholder(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(list(self._placeholders), dtype=torch.long))

    def placeholder_mask(self, random: Generator) -> Tensor:
        """1 for each token that stands for a part of a picture or sound; always at the same places."""
        return self.is_placeholder(self.input_ids(random)).long()

    def global_mask(self, _: Generator) -> Tensor:
        """1 for the first token, which all others attend to."""
        mask_T = torch.zeros(self.options.longest, dtype=torch.long)
        mask_T[0] = 1
        return mask_T

    def entities(self, random: Generator) -> Sample:
        """What a text mentions, each with the places of its two tokens."""
        entities_N = torch.randint(self.config.entity_vocab_size, (ENTITIES,), generator=random)
        starts_N = torch.randint(self.options.longest - 1, (ENTITIES,), generator=random)
        places = {"entity_position_ids": torch.stack([starts_N, starts_N + 1], dim=1)}
        mask = {"entity_attention_mask": torch.ones(ENTITIES, dtype=torch.long)}
        labels = {"entity_labels": entities_N} if "entity_labels" in self.taken else {}
        return {"entity_ids": entities_N, **places, **mask, **labels}

    def boxes(self, random: Generator) -> Tensor:
        """Two corners of each token's box on a page of 1000 by 1000; Bros takes all four."""
        length = self.options.longest
        corners = torch.randint(500, (length, 2), generator=random)
        opposite = corners + torch.randint(1, 500, (length, 2), generator=random)
        boxes = torch.cat([corners, opposite], dim=1)
        return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]] / 1000 if self.config.model_type == "bros" else boxes

    def paths(self, random: Generator, limit: str) -> Tensor:
        """The way from a page's root to each token."""
        length, depth = self.options.longest, self.config.max_depth
        return torch.randint(getattr(self.config, limit), (length, depth), generator=random)

    # Pictures.

    def size(self, vision: Any = None) -> tuple[int, int]:
        size: Any = self.options.picture_size
        if ratios := self.find("scaled_images_ratios"):  # the smallest copy of the picture is one patch
            size = size or round(self.config.patch_size / min(ratios))
        size = size or self.find("image_size", "img_size", among=vision or self.vision, default=PICTURE)
        if isinstance(size, dict):
            size = (size["height"], size["width"])
        height, width = (size, size) if isinstance(size, int) else size[-2:]
        return height, width

    def channels(self) -> int:
        return int(self.find("num_channels", "in_channels", "in_chans", among=self.vision, default=3))

    def patch(self) -> int:
        size = self.find("patch_size", among=self.vision, default=16)
        return size if isinstance(size, int) else size[0]

    def picture(self, random: Generator, vision: Any = None) -> Tensor:
        return torch.randn(self.channels(), *self.size(vision), generator=random)

    def pixel_values(self, random: Generator) -> Any:
        """A picture, laid out as the processor of the model does it."""
        return next(layout for applies, layout in LAYOUTS if applies(self))(self, random)

    def pictures(self, random: Generator) -> Sample:
        """A list of one picture, or of one tile."""
        masked = "tile_fine_mask" in self.taken or self.config.model_type == "pi0"
        whole = {"pixel_attention_mask": torch.ones(1, dtype=torch.bool)} if masked else {}
        return {"pixel_values": self.picture(random)[None], **whole}

    def blocks(self, random: Generator) -> Sample:
        """As Inkling reads a picture: a block of pixels for each token, with its channels last."""
        merge = self.find("spatial_merge_size", among=self.vision, default=1)
        side, time = self.patch() * merge, self.find("temporal_patch_size", among=self.vision, default=0)
        height, width = (max(1, length // side) for length in self.size())
        shape = (height * width, *([time] if time else []), side, side, self.channels())
        grid = {"image_grid_thw": torch.tensor([1, height, width])} if "image_grid_thw" in self.taken else {}
        return {"pixel_values": torch.randn(shape, generator=random), **grid}

    def crops(self, random: Generator) -> Sample:
        """A picture as a whole, and cut into pieces of the size that the tower reads."""
        picture = self.picture(random)
        tiles = self._tile_count(picture.shape[1])
        return {
            "pixel_values": picture.expand(tiles, -1, -1, -1).clone(),
            "image_sizes": torch.tensor(picture.shape[1:]),
        }

    def sized(self, random: Generator) -> Sample:
        picture = self.picture(random)
        return {"pixel_values": picture, "image_sizes": torch.tensor(picture.shape[1:])}

    def regions(self, random: Generator) -> Sample:
        """What a detector has found, and where there is something beside the text."""
        masks = {"attention_mask": self.options.longest, "visual_attention_mask": REGIONS}
        whole = {name: torch.ones(length, dtype=torch.long) for name, length in masks.items()}
        return {"visual_embeds": torch.randn(REGIONS, self.config.visual_embedding_dim, generator=random), **whole}

    def has_sizes(self) -> bool:
        """Llava and those after it take sizes for the towers that read pictures of any size."""
        chosen = self.find("vision_feature_layer") is not None
        return self.vision.model_type == "pixtral" or ("image_sizes" in self.taken and not chosen)

    def _tile_count(self, height: int) -> int:
        from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

        return int(image_size_to_num_patches((height, height), self.config.image_grid_pinpoints, self.size()[0]))

    def patches(self, random: Generator) -> Sample:
        """A picture cut into patches, and where they lie."""
        patch = self.patch()
        merge = 4 if "target_sizes" in self.taken else 2  # the former merge twice
        merge = self.find("spatial_merge_size", "merge_size", "pooling_kernel_size", among=self.vision, default=merge)
        time = self.find("temporal_patch_size", "patch_temporal", among=self.vision, default=1)
        height, width = (max(1, side // (patch * merge)) * merge for side in self.size())
        pixels = torch.randn(height * width, self.channels() * time * patch**2, generator=random)
        if "image_position_ids" in self.taken:
            rows, columns = torch.arange(height), torch.arange(width)
            return {"pixel_values": pixels, "image_position_ids": torch.cartesian_prod(rows, columns).flip(1)}
        if "target_sizes" in self.taken:
            pixels = pixels.view(-1, self.channels(), patch, patch).permute(1, 2, 0, 3).flatten(2)
            return {"pixel_values": pixels, "target_sizes": torch.tensor([height, width])}
        if "image_grid_hw" in self.taken:
            return {"pixel_values": pixels, "image_grid_hw": torch.tensor([height, width])}
        if self.config.model_type in ("kimi_k25", "paddleocr_vl"):
            pixels = pixels.view(-1, self.channels(), patch, patch)
        sample = {"pixel_values": pixels, "image_grid_thw": torch.tensor([1, height, width])}
        return sample | ({"image_merge_sizes": torch.tensor(merge)} if "image_merge_sizes" in self.taken else {})

    def padded_patches(self, random: Generator) -> Sample:
        patch = self.patch()
        side = int(self.find("num_patches", among=self.vision, default=(PICTURE // patch) ** 2) ** 0.5)
        pixels = torch.randn(side * side, self.channels() * patch**2, generator=random)
        mask = torch.ones(side * side, dtype=torch.long)
        return {"pixel_values": pixels, "spatial_shapes": torch.tensor([side, side]), "pixel_attention_mask": mask}

    def tiles(self, random: Generator) -> Sample:
        picture = self.picture(random)
        tiles = self.find("max_num_tiles", among=self.vision, default=4)
        return {
            "pixel_values": picture.expand(1, tiles, -1, -1, -1).clone(),
            "aspect_ratio_ids": torch.tensor([1]),
            "aspect_ratio_mask": torch.ones(1, tiles, dtype=torch.long),
            "cross_attention_mask": torch.ones(self.options.longest, 1, tiles, dtype=torch.long),
        }

    def video(self, random: Generator) -> Tensor:
        frames = self.find("num_frames", "frames_per_clip", "num_image_with_embedding", default=FRAMES)
        return torch.stack([self.picture(random) for _ in range(frames)])

    def flattened_patches(self, random: Generator) -> Tensor:
        """As Pix2Struct reads them: each patch behind its row and column."""
        patch = self.patch()
        rows, columns = (side // patch for side in self.size())
        places = torch.cartesian_prod(torch.arange(1, rows + 1), torch.arange(1, columns + 1)).float()
        return torch.cat([places, torch.randn(rows * columns, self.channels() * patch**2, generator=random)], dim=1)

    def mask(self, random: Generator, classes: int) -> Tensor:
        """A class for each pixel."""
        return torch.randint(classes, self.size(), generator=random)

    # Sound.

    def wave(self, random: Generator) -> Tensor:
        return torch.randn(self.options.audio_samples, generator=random)

    def mels(self) -> int:
        names = ("num_mel_bins", "feature_size", "n_mels", "input_feat_per_channel", "feature_projection_input_dim")
        bins = self.find(
            *names, "input_feat_size", "input_dim", "num_mel_bin", "num_chroma", among=self.audio, default=80
        )
        if self.config.model_type == "pop2piano":
            return int(self.config.d_model)
        if self.config.model_type.startswith("granite_speech5"):  # two frames, each with its change
            return 4 * int(bins)
        return int(bins) * int(self.find("num_stacked_frames", among=self.audio, default=1))

    def spectrum(self, random: Generator) -> Any:
        """(M, F) as Whisper reads it, or (F, M) as others do."""
        positions = self.find("max_source_positions", among=self.audio)
        if positions is None and (window := self.find("n_window", among=self.audio)):
            positions = window * max(1, self.options.audio_samples // HOP // (2 * window))
        if self.config.model_type == "clap":
            spectrum = torch.randn(1, 1024, self.mels(), generator=random)
            return {"input_features": spectrum, "is_longer": torch.ones(1, dtype=torch.bool)}
        if self.config.model_type in CHANNELS_FIRST:  # which merge up to eight frames
            frames = 8 * math.ceil(self.options.audio_samples / (8 * HOP))
            sample = {"input_features": torch.randn(self.mels(), frames, generator=random)}
            if "input_features_mask" in self.taken:
                sample["input_features_mask"] = torch.ones(frames, dtype=torch.long)
            if "chunk_sample_lengths" in self.taken:
                sample["chunk_sample_lengths"] = torch.tensor(self.options.audio_samples)
            return sample
        if positions is not None and self.find("input_feat_per_channel", "feature_projection_input_dim") is None:
            spectrum = torch.randn(self.mels(), 2 * positions, generator=random)
            frames = 2 * positions
        else:
            frames = max(1, self.options.audio_samples // HOP)
            spectrum = torch.randn(frames, self.mels(), generator=random)
        masks = ["input_features_mask", "feature_attention_mask"]
        masks += ["attention_mask"] if positions is None and "input_ids" not in self.taken else []
        if self.config.model_type in ("granite_speech", "granite_speech_plus"):  # masks of tokens, which leave none out
            masks = []
        whole = {name: torch.ones(frames, dtype=torch.long) for name in masks if name in self.taken}
        if "padding_mask" in self.taken:  # of the sound itself
            whole["padding_mask"] = torch.ones(self.options.audio_samples, dtype=torch.long)
        return {"input_features": spectrum, **whole}

    def input_values(self, random: Generator) -> Any:
        if self.config.model_type == "audio-spectrogram-transformer":
            return torch.randn(self.config.max_length, self.config.num_mel_bins, generator=random)
        if self.config.model_type in CODECS:
            channels = self.find("audio_channels", default=1)
            wave = torch.randn(channels, self.options.audio_samples, generator=random)
            whole = torch.ones(self.options.audio_samples, dtype=torch.bool)
            masked = {"input_ids", "padding_mask"} <= set(self.taken)
            return {"input_values": wave, **({"padding_mask": whole} if masked else {})}
        if "input_values_cutoffs" in self.taken:
            length = torch.tensor([self.options.audio_samples])
            return {"input_values": self.wave(random)[None], "input_values_cutoffs": length}
        return self.wave(random)

    def spoken_codes(self, random: Generator) -> Sample:
        """What a codec has made of sound that the text goes on with."""
        if "audio_labels" not in self.taken:
            return {}
        shape = (self.options.longest, self.config.num_codebooks)
        codes = torch.randint(self.config.codebook_size, shape, generator=random)
        return {"audio_input_ids": codes, "audio_input_ids_mask": torch.ones(len(codes), dtype=torch.bool)}

    def decoder_codes(self, random: Generator) -> Any:
        """What a decoder of sound has written so far: a token for each of its codebooks at each time."""
        decoder: Any = getattr(self.config, "decoder_config", None)
        shape = (self.options.longest, getattr(decoder, "num_channels", 0))
        return torch.randint(decoder.vocab_size, shape, generator=random) if all(shape) else {}

    # Series, and what an agent does.

    def movement(self, random: Generator) -> Sample:
        """What a robot is in, what it does, and the noise and its strength that a flow starts from."""
        config = self.config
        actions, noise = torch.randn(2, config.chunk_size, config.max_action_dim, generator=random)
        state = torch.randn(config.max_state_dim, generator=random)
        return {"state": state, "actions": actions, "noise": noise, "timestep": torch.rand((), generator=random)}

    def episode(self, random: Generator) -> Sample:
        """What an agent has seen, done and got."""
        config, length = self.config, self.options.longest
        widths = {"states": config.state_dim, "actions": config.act_dim, "rewards": 1, "returns_to_go": 1}
        sample = {name: torch.randn(length, width, generator=random) for name, width in widths.items()}
        return sample | {"timesteps": torch.arange(length) % config.max_ep_len}

    def series(self, random: Generator) -> Sample:
        """The past and the future of a series, with the features that belong to each of their times."""
        config = self.config
        if "past_time_features" not in self.taken:
            channels = (
                () if "window_size" in self.taken else (self.find("num_input_channels", "input_size", default=1),)
            )
            past = torch.randn(self.find("context_length"), *channels, generator=random)
            future = torch.randn(self.find("prediction_length", "horizon_length"), *channels, generator=random)
            return {"past_values": past, "future_values": future}
        length = config.context_length + max(config.lags_sequence)
        several = () if config.input_size == 1 else (config.input_size,)
        features = config.num_time_features
        sample = {
            "past_values": torch.randn(length, *several, generator=random),
            "past_time_features": torch.randn(length, features, generator=random),
            "past_observed_mask": torch.ones(length, *several),
            "future_values": torch.randn(config.prediction_length, *several, generator=random),
            "future_time_features": torch.randn(config.prediction_length, features, generator=random),
        }
        if config.num_static_categorical_features:
            sample["static_categorical_features"] = torch.zeros(
                config.num_static_categorical_features, dtype=torch.long
            )
        if config.num_static_real_features:
            sample["static_real_features"] = torch.randn(config.num_static_real_features, generator=random)
        return sample


def _section(config: Any, *names: str) -> Any:
    found = (getattr(config, name, None) for name in names)
    return next((part for part in found if hasattr(part, "model_type")), config)


LAYOUTS: tuple[tuple[Callable[[Inputs], bool], Callable[[Inputs, Generator], Any]], ...] = (
    (lambda inputs: inputs.config.model_type.startswith("inkling"), Inputs.blocks),
    (lambda inputs: not GRIDS.isdisjoint(inputs.taken), Inputs.patches),
    (lambda inputs: "spatial_shapes" in inputs.taken, Inputs.padded_patches),
    (lambda inputs: "aspect_ratio_ids" in inputs.taken, Inputs.tiles),
    (lambda inputs: hasattr(inputs.config, "image_grid_pinpoints"), Inputs.crops),
    (Inputs.has_sizes, Inputs.sized),
    (lambda inputs: inputs.config.model_type == "fuyu", lambda inputs, random: inputs.flattened_patches(random)[:, 2:]),
    (
        lambda inputs: (
            inputs.options.task == "VideoClassification" or inputs.config.model_type in ("instructblipvideo", "xclip")
        ),
        Inputs.video,
    ),
    (
        lambda inputs: "pixel_attention_mask" in inputs.taken or inputs.config.model_type in SEVERAL_PICTURES,
        Inputs.pictures,
    ),
    (lambda _: True, Inputs.picture),
)
"""The first that applies says how ``pixel_values`` are laid out."""


INPUTS: dict[str, Callable[[Inputs, Generator], Any]] = {
    "input_ids": Inputs.input_ids,
    "mm_token_type_ids": Inputs.placeholder_mask,
    "moe_mm_token_type_ids": Inputs.placeholder_mask,
    "image_embeds_position_mask": Inputs.placeholder_mask,
    "encoder_hidden_states": lambda inputs, random: torch.randn(
        inputs.options.longest, inputs.config.cross_attention_hidden_size or inputs.config.hidden_size, generator=random
    ),
    "bbox": Inputs.boxes,
    "qformer_input_ids": lambda inputs, random: torch.randint(
        inputs.config.qformer_config.vocab_size, (inputs.options.longest,), generator=random
    ),
    "xpath_tags_seq": lambda inputs, random: inputs.paths(random, "max_xpath_tag_unit_embeddings"),
    "xpath_subs_seq": lambda inputs, random: inputs.paths(random, "max_xpath_subs_unit_embeddings"),
    "image_attention_mask": lambda inputs, _: torch.ones(inputs.options.longest, 1, dtype=torch.long),
    "pixel_values": Inputs.pixel_values,
    "high_res_pixel_values": lambda inputs, random: inputs.picture(random, inputs.config.high_res_vision_config),
    "pixel_values_videos": Inputs.video,
    "flattened_patches": Inputs.flattened_patches,
    "visual_feats": lambda inputs, random: torch.randn(REGIONS, inputs.config.visual_feat_dim, generator=random),
    "visual_pos": lambda _, random: torch.rand(REGIONS, 4, generator=random),
    "visual_embeds": Inputs.regions,
    "input_features": Inputs.spectrum,
    "input_values": Inputs.input_values,
    "audio_input_ids": Inputs.spoken_codes,
    "decoder_input_ids": Inputs.decoder_codes,
    "protein_input_ids": lambda inputs, random: torch.randint(
        inputs.config.protein_encoder_config.vocab_size, (PROTEIN,), generator=random
    ),
    "protein_attention_mask": lambda *_: torch.ones(PROTEIN, dtype=torch.long),
    "global_attention_mask": Inputs.global_mask,
    "entity_ids": Inputs.entities,
    "task_inputs": lambda inputs, random: torch.rand(inputs.config.task_seq_len, generator=random),
    "states": Inputs.episode,
    "state": Inputs.movement,
    "past_values": Inputs.series,
}
"""What forward's parameters are, by name; a dict has some that belong together."""
TEXTS = ("input_ids", "mm_token_type_ids", "moe_mm_token_type_ids", "image_embeds_position_mask", "bbox")
"""Those that depend on how many tokens stand for pictures and sounds."""


def _unsharded() -> AbstractContextManager[Any]:
    """Under ZeRO-3, transformers shards what it builds at once, which needs data."""
    from transformers.integrations import deepspeed

    return patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None)


def _features(model: Any, modality: str, batch: Sample) -> int:
    """How many tokens stand for the pictures or sounds of a batch of one sample.

    The model's tower runs on the device meta; on the CPU if it reads values.
    """
    base = model.model if hasattr(getattr(model, "model", None), f"get_{modality}_features") else model
    function = getattr(base, f"get_{modality}_features", None)
    if function is None:
        return 0
    taken = inspect.signature(function).parameters
    given = {name: value for name, value in batch.items() if name in taken}
    if "input_ids" in taken and "input_features_mask" in batch:  # it reads where they stand
        lengths = batch["input_features_mask"].sum(-1)
        return int(base.audio_tower._get_feat_extract_output_lengths(lengths)[1].sum())
    if not any(value.is_floating_point() for value in given.values()):
        return 0
    on_meta = {name: value.to("meta") if value.is_floating_point() else value for name, value in given.items()}
    with torch.no_grad():
        try:
            output = function(**on_meta, return_dict=True)
        except Exception:  # whatever an operator says that has no values to read
            _materialize(base)
            output = function(**given, return_dict=True)
    features = getattr(output, "pooler_output", None)
    if features is None:
        features = getattr(output, "last_hidden_state", output)
    if features is None:  # those of each layer of the tower that it uses
        features = output.deepstack_features[0][1]
    rows = [features] if isinstance(features, Tensor) else list(features)
    return sum(row.numel() // row.shape[-1] for row in rows)


def _materialize(base: Any) -> None:
    """Put all but the language model on the CPU, with random weights and its tables of positions."""
    base.to_empty(device="cpu", recurse=False)
    for name, part in base.named_children():
        if name not in LANGUAGE:
            part.to_empty(device="cpu")
            for module in part.modules():
                module._is_hf_initialized = False
            initialize = getattr(part, "initialize_weights", lambda part=part: part.apply(base._init_weights))
            initialize()
