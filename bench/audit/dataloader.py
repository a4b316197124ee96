"""`bench audit dataloader`: how many samples the loader can deliver, beside what training takes."""

from collections.abc import Sequence
from typing import Literal

from bench.audit.unfinished import in_words
from bench.diagnosis.hang import ranks_in_words
from bench.records.base import Frozen
from bench.records.outcome import Failed, Hang, Oom
from bench.units import percent, rate

ABOUT, CLEARLY = 1.1, 1.5
"""Below the one, the loader delivers about what training takes; from the other on, clearly more."""
WAITS, WAITS_LONG = 0.1, 0.25
"""Shares of a training step that wait for samples. Without workers a loader of twice the speed costs half a step."""

Word = Literal["FED", "TIGHT", "STARVED", "NO TRAINING FIGURE", "NOT MEASURED"]


class Loaded(Frozen):
    """`audit<N>.json`: the batches that one rank has taken from its loader, without a model."""

    rank: int
    start_s: float
    """Until each worker, or the rank itself, had delivered its first batch. Not part of the window."""
    fetch_times_s: tuple[float, ...]
    """How long each batch of the window let itself be waited for. With workers these come in bursts."""
    to_device_times_s: tuple[float, ...]
    window_s: float
    """The whole window: what its fetches, its copies and everything between them took."""

    @property
    def batches_per_s(self) -> float:
        return len(self.fetch_times_s) / self.window_s


class Training(Frozen):
    """What stored training of the same cell took."""

    batch_per_rank: int
    samples_per_s_global: float
    dataload_wait_share: float | None
    """Of a step, in the slowest rank's phase window; null without one."""


class DataloaderVerdict(Frozen):
    word: Word
    says: str
    """One sentence."""
    samples_per_s_global: float | None
    """What the loaders feed to ranks that wait for each other: the slowest one gates them all."""


def judge(
    loaded: Sequence[Loaded],
    world_size: int,
    batch_per_rank: int,
    workers: int,
    training: Training | None,
    ended: Oom | Hang | Failed | None,
) -> DataloaderVerdict:
    """Whether training waits for its samples, or would if its steps were faster.

    Args:
        ended: what became of the ranks when they did not end well.
    """
    if ended is not None or len(loaded) < world_size:
        missing = ranks_in_words(sorted(set(range(world_size)) - {one.rank for one in loaded}))
        why = in_words(ended) if ended is not None else f"{missing} left no record"
        return DataloaderVerdict(word="NOT MEASURED", says=why, samples_per_s_global=None)
    delivers = batch_per_rank * world_size * min(one.batches_per_s for one in loaded)
    if training is None:
        says = (
            f"the loader delivers {rate(delivers)} samples/s at batch {batch_per_rank}; no training of the cell at that"
            " batch is stored here: bench run it"
        )
        return DataloaderVerdict(word="NO TRAINING FIGURE", says=says, samples_per_s_global=delivers)
    word = _word(ratio := delivers / training.samples_per_s_global, training.dataload_wait_share)
    says = (
        f"the loader delivers {rate(delivers)} samples/s, {rate(ratio)} times the"
        f" {rate(training.samples_per_s_global)} that training takes at batch {training.batch_per_rank}"
    )
    if training.dataload_wait_share is not None:
        says += f"; {percent(training.dataload_wait_share)} of a step waits for samples"
    if word != "FED":
        more = "more workers" if workers else "workers (measure.dataloader_workers)"
        says += f": give it {more}, or samples that cost less"
    return DataloaderVerdict(word=word, says=says, samples_per_s_global=delivers)


def _word(ratio: float, waits: float | None) -> Word:
    if ratio < ABOUT or (waits is not None and waits >= WAITS_LONG):
        return "STARVED"
    if ratio < CLEARLY or (waits is not None and waits >= WAITS):
        return "TIGHT"
    return "FED"
