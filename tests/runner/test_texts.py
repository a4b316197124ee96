"""The corpus of what libraries say when memory, a device or a group gives up: `device_texts.yaml`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed import DistBackendError

from bench.diagnosis.classify import classify
from bench.diagnosis.oom_words import abort_source
from bench.records.phases import Stage
from bench.records.rank_outcome import RankKilled
from bench.runner.oom import find

TEXTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "device_texts.yaml").read_text())
TYPES: dict[str, Any] = {
    "RuntimeError": RuntimeError,
    "OSError": OSError,
    "OutOfMemoryError": torch.OutOfMemoryError,
    "AcceleratorError": torch.AcceleratorError,
    "DistBackendError": DistBackendError,
}


def of(field: str) -> list[Any]:
    return [pytest.param(one, id=f"{one['means']}: {one['says'][:50]}") for one in TEXTS if field in one]


def kind(error: BaseException, **known: bool) -> str:
    found = find(error, **known)
    return found.kind if found else "other"


@pytest.mark.parametrize("text", of("error"))
def test_an_error_means(text: dict[str, Any]) -> None:
    error = TYPES[text["error"]](text["says"])
    assert kind(error) == kind(error, limited=True) == text["means"]
    assert kind(error, full=True) == text.get("full", text["means"])


@pytest.mark.parametrize("text", of("log"))
def test_the_log_of_an_aborted_rank_means(text: dict[str, Any]) -> None:
    killed = RankKilled(rank=0, phase=Stage.MEASURE, signal="SIGABRT", at=1.0, last_words=text["says"])
    outcome = classify([killed], world_size=1)
    means = abort_source(text["says"]) or ("hang" if outcome.kind == "hang" else "other")
    assert means == text["means"]


def test_every_group_of_causes_has_texts_that_are_not_memory() -> None:
    """A corpus of memory alone would accept a search that takes any error for a limit."""
    assert len({one["means"] for one in TEXTS}) >= 12
    assert sum(one["means"] == "other" for one in TEXTS) > 15
