"""Tokens and FLOPs of a real attempt with samples of many lengths, one rank in this process, against counts by hand."""

import contextlib

import pytest
import ragged
from accelerate.state import AcceleratorState
from examples import cell

from bench.observe.beats import BeatFile
from bench.records.cell import Attempt, Measure
from bench.records.rank_outcome import RankOk, Tokens, Work
from bench.runner.attempt import Here, _measure
from bench.runner.device import Cpu
from bench.runner.setup import set_up

BATCH, WARM, STEPS = 40, 2, 9


@pytest.fixture(scope="module", params=[False, True], ids=["looked for", "named by the workload"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RankOk:
    AcceleratorState._reset_state(reset_partial_state=True)
    folder, measure = tmp_path_factory.mktemp("tokens"), Measure(warmup_steps=WARM, steps=STEPS, phase_steps=0)
    options = {"names_worst": request.param}
    one = cell("single", num_processes=1, workload="ragged:Ragged", options=options, measure=measure)
    job = set_up(one, Cpu(), BATCH)
    here = Here(0, Cpu(), folder, BeatFile(folder, 0))
    return _measure(Attempt(cell=one, batch_per_rank=BATCH), "cpu", job, here, 0.0, contextlib.ExitStack())


def lengths() -> list[list[int]]:
    """Of each measured step, by the order of the samples."""
    taken = [index % ragged.SAMPLES for index in range(WARM * BATCH, (WARM + STEPS) * BATCH)]
    each = [ragged.LONG if index in ragged.LATE else ragged.SHORT for index in taken]
    return [each[step * BATCH : (step + 1) * BATCH] for step in range(STEPS)]


def test_tokens_and_places_of_each_step(measured: RankOk) -> None:
    trained = tuple(sum(step) for step in lengths())
    places = tuple(max(step) * BATCH for step in lengths())
    assert len(set(trained)) == 2, "one of them is the tenth batch"
    assert measured.tokens == Tokens(samples=STEPS * BATCH, trained=trained, places=places, longest=ragged.LONG)


def test_flops_are_a_mean_over_the_samples_that_were_measured(measured: RankOk) -> None:
    mean = sum(map(sum, lengths())) / (STEPS * BATCH)
    assert measured.work == Work(step_flops=round(3 * mean * ragged.HELD), recomputed_flops=0)


def test_a_step_with_the_worst_batch_follows_and_peaks_are_kept(measured: RankOk) -> None:
    assert measured.sizes.largest_batch == 2 * BATCH * ragged.LONG  # values, and the mask
    assert len(measured.step_peaks_bytes) == STEPS
