"""`bench audit dataloader`: how many samples the loader can deliver, compared with what training consumes."""

from collections.abc import Sequence
from typing import Literal

from bench.audit import unfinished_in_words
from bench.records.base import Frozen
from bench.records.hang import ranks_in_words
from bench.records.outcome import Failed, Hang, Oom
from bench.units import percent, rate

ABOUT, CLEARLY = 1.1, 1.5
"""Ratios of the loader's rate to training's: below ABOUT it is no faster, from CLEARLY on it is clearly faster."""
WAITS, WAITS_LONG = 0.1, 0.25
"""Shares of a training step spent waiting for samples. Without workers, a loader of twice training's speed costs half a
step."""

Word = Literal["FED", "TIGHT", "STARVED", "NO TRAINING FIGURE", "NOT MEASURED"]


class Loaded(Frozen):
    """`audit<N>.json`: the batches that one rank has taken from its loader, without a model."""

    rank: int
    start_s: float
    """Time until each worker, or the rank itself, had delivered its first batch. Not part of the window."""
    fetch_times_s: tuple[float, ...]
    """Time that the rank waited for each batch of the window. With workers, batches come in bursts."""
    to_device_times_s: tuple[float, ...]
    window_s: float
    """Duration of the whole window, with fetches, copies and everything between them."""

    @property
    def batches_per_s(self) -> float:
        return len(self.fetch_times_s) / self.window_s


class Training(Frozen):
    """Figures of a stored result of the same cell."""

    batch_per_rank: int
    samples_per_s_global: float
    dataload_wait_share: float | None
    """Share of a step spent waiting for samples, in the slowest rank's phase window; null without one."""


class DataloaderVerdict(Frozen):
    word: Word
    says: str
    """One sentence."""
    samples_per_s_global: float | None
    """Of all ranks together. Ranks wait for each other in training, so the slowest loader limits all of them."""


def judge(
    loaded: Sequence[Loaded],
    world_size: int,
    batch_per_rank: int,
    workers: int,
    training: Training | None,
    ended: Oom | Hang | Failed | None,
) -> DataloaderVerdict:
    """Whether training waits for samples, or would if its steps were faster. ``ended``: of ranks that did not end."""
    if ended is not None or len(loaded) < world_size:
        missing = ranks_in_words(sorted(set(range(world_size)) - {one.rank for one in loaded}))
        why = unfinished_in_words(ended) if ended is not None else f"{missing} left no record"
        return DataloaderVerdict(word="NOT MEASURED", says=why, samples_per_s_global=None)
    delivers = batch_per_rank * world_size * min(one.batches_per_s for one in loaded)
    if training is None:
        says = (
            f"the loader delivers {rate(delivers)} samples/s at batch {batch_per_rank}; no training result of the cell"
            " at this batch is stored here: measure it with bench run"
        )
        return DataloaderVerdict(word="NO TRAINING FIGURE", says=says, samples_per_s_global=delivers)
    word = _word(ratio := delivers / training.samples_per_s_global, training.dataload_wait_share)
    says = (
        f"the loader delivers {rate(delivers)} samples/s, {rate(ratio)} times the"
        f" {rate(training.samples_per_s_global)} that training consumes at batch {training.batch_per_rank}"
    )
    if training.dataload_wait_share is not None:
        says += f"; {percent(training.dataload_wait_share)} of a step is spent waiting for samples"
    if word != "FED":
        more = "more workers" if workers else "workers (measure.dataloader_workers)"
        says += f": use {more}, or cheaper samples"
    return DataloaderVerdict(word=word, says=says, samples_per_s_global=delivers)


def _word(ratio: float, wait_share: float | None) -> Word:
    if ratio < ABOUT or (wait_share is not None and wait_share >= WAITS_LONG):
        return "STARVED"
    if ratio < CLEARLY or (wait_share is not None and wait_share >= WAITS):
        return "TIGHT"
    return "FED"
