"""Tests of some models need more than the oldest transformers that bench takes, or Pillow."""

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from packaging.version import Version

NEWER = (
    # Their forward draws whether to drop a layer, even where none is dropped, and bench refuses that.
    *(
        f"test_every_family_trains_and_checkpointing_changes_no_loss[{name}]"
        for name in ("bart", "whisper", "wav2vec2")
    ),
    "test_a_first_step_reaches_the_parameters[time_series_transformer]",
    "test_a_first_step_reaches_the_parameters[speech-encoder-decoder]",
    "test_a_first_step_reaches_the_parameters[higgs_audio_v2]",
    # It has no such model type.
    *(
        f"test_a_first_step_reaches_the_parameters[{name}]"
        for name in ("gradium_phonon_tts", "granite_docling", "moss_transcribe_diarize")
    ),
    "test_no_such_model[hf:sam_mask_decoder-it is a part of others]",
    "test_what_cannot_be_trained_is_refused_in_a_sentence[sam_mask_decoder-fields0-it is a part of others]",
    "test_what_cannot_be_trained_is_refused_in_a_sentence[sam_mask_decoder-fields1-hf:sam]",
    "test_what_cannot_be_trained_is_refused_in_a_sentence"
    "[qwen2_5_vl_vision-fields5-bench has no samples for hidden_states, grid_thw]",
)
"""Tests that fail with transformers 5.17 and pass with the version in constraints.txt."""
LOSS_NEEDS_PILLOW = ("detr", "grounding-dino")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    newer = pytest.mark.skip(reason=f"needs transformers 5.23; this is {version('transformers')}")
    old, no_pillow = Version(version("transformers")) < Version("5.23"), find_spec("PIL") is None
    for item in items:
        if old and item.name in NEWER:
            item.add_marker(newer)
        if no_pillow and item.name in [
            f"test_a_first_step_reaches_the_parameters[{name}]" for name in LOSS_NEEDS_PILLOW
        ]:
            item.add_marker(pytest.mark.skip(reason="transformers needs Pillow for the loss of this model"))
