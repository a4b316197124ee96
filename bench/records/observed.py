"""What a script did in its measured steps, as seen from outside."""

from collections.abc import Iterable, Iterator, Mapping

from bench.records.base import AtLeastOne, Count, Frozen
from bench.records.hang import ranks_in_words
from bench.units import counted


class Observed(Frozen):
    """Of one rank; see bench/observe."""

    samples: AtLeastOne | None = None
    """That its model took in all measured steps: the first dimension of the first tensor of each call. null: not seen,
    as inside a compiled graph."""
    loaded_samples: AtLeastOne | None = None
    """That DataLoaders gave it meanwhile; they may be ahead. null: it has no DataLoader."""
    forwards: AtLeastOne | None = None
    """Calls of the model that led to a gradient in all measured steps."""
    skipped_steps: Count = 0
    """Measured steps in which a gradient scaler, or DeepSpeed after an overflow, left the weights as they were."""
    optimizers: AtLeastOne = 1
    """Optimizers that step in each step."""
    optimizer: str
    """Their classes."""
    trainers: AtLeastOne = 1
    """Processes that stepped as this rank up to the end of the measured steps: without torch.distributed, all are 0."""
    compiled: bool = False
    """Whether torch.compile made graphs."""

    def taken(self, asked: int) -> int | None:
        """Samples of all measured steps, of which the matrix asks for ``asked``. The first dimension of what a model is
        called with is not always the batch, and two views of a sample are one."""
        return self.loaded_samples if self.counts_loaded(asked) else self.samples or self.loaded_samples

    def counts_loaded(self, asked: int) -> bool:
        """Whether what the loaders gave counts: ``asked`` samples, or fewer than the model seems to take and some times
        ``asked``, as of steps of several batches. Else it may train on samples again, or evaluate others."""
        if self.samples is None or self.loaded_samples is None or self.samples == self.loaded_samples:
            return False
        return self.loaded_samples == asked or (self.loaded_samples < self.samples and self.loaded_samples % asked == 0)


def other_batch(seen: Observed, steps: int, batch: int, samples: int) -> Iterator[str]:
    """Where a rank's samples were not those that the script was asked for: a clause with both numbers.

    Args:
        steps: that were measured.
        batch: samples of one forward.
        samples: of a step of this rank, as far as the matrix says.
    """
    asked = steps * samples
    if seen.forwards and seen.samples:
        if seen.counts_loaded(asked):
            if seen.loaded_samples != asked:
                loaded = (seen.loaded_samples or 0) / steps
                yield f"its DataLoaders gave {loaded:.4g} samples a step, and the matrix says {samples}"
        elif seen.samples != seen.forwards * batch:
            yield f"its model took {seen.samples / seen.forwards:.4g} samples per forward, and the matrix says {batch}"
    elif (taken := seen.taken(asked)) and taken != asked:
        yield f"a step took {taken / steps:.4g} samples of a rank, and the matrix says {samples}"


def skipped(seen: Observed, steps: int) -> Iterator[str]:
    if seen.skipped_steps:
        yield f"{seen.skipped_steps} of {counted(steps, 'step')} did not change the weights: their gradients overflowed"


def other_steps(seen: Observed, steps: int, batch: int, samples: int) -> Iterator[str]:
    """In what else its steps are not those that the matrix describes. Figures count them as they were."""
    asked = steps * samples
    trained, loaded = (seen.samples or 0) / steps, (seen.loaded_samples or 0) / steps
    if seen.taken(asked) is None:
        yield f"bench saw no samples: it takes those that the matrix says, {samples} a step"
    elif seen.counts_loaded(asked):
        yield (
            f"its model was called with a first dimension of {trained:.4g} a step, and its DataLoaders gave"
            f" {loaded:.4g} samples: these count"
        )
    if seen.forwards and seen.forwards * batch != asked:
        yield f"a step had {_number(seen.forwards / steps, 'forward')}, and the matrix says {samples // batch}"
    if trained and loaded >= trained + 2 * trained / steps and not seen.counts_loaded(asked):
        yield (
            f"its DataLoaders gave it {loaded:.4g} samples a step, and its model trained on {trained:.4g}: what it does"
            " with the others, such as an evaluation, is part of its steps"
        )
    if seen.trainers > 1:
        yield f"{seen.trainers} processes trained as this rank, and one was measured: make them ranks, or launch one"
    if seen.optimizers > 1:
        yield f"a step ends when each of {seen.optimizers} optimizers has stepped"


def only_forwards(seen: Observed, steps: int, batch: int, samples: int) -> Iterator[str]:
    """Where only the calls of its model show how many samples a step has, and there are more than the matrix says."""
    if seen.samples and seen.loaded_samples is None and (seen.forwards or 0) * batch > steps * samples:
        yield (
            f"a step had {(seen.forwards or 0) / steps:g} forwards, and the matrix says {samples // batch}. Each counts"
            " as a micro-batch: if several are of the same samples, samples/s is too high."
        )


def by_rank(told: Mapping[int, Iterable[str]]) -> Iterator[str]:
    """What is told of each of all ranks, once: ``rank 1: a step had 4 forwards``, ``every rank: ...``."""
    ranks: dict[str, list[int]] = {}
    for rank, words in told.items():
        for each in words:
            ranks.setdefault(each, []).append(rank)
    for words, of in ranks.items():
        yield f"{'every rank' if len(of) == len(told) > 1 else ranks_in_words(of)}: {words}"


def _number(value: float, noun: str) -> str:
    return counted(int(value), noun) if value == int(value) else f"{value:g} {noun}s"
