"""`bench audit dataloader`: the verdict on a loader."""

from collections.abc import Sequence

import pytest

from bench.audit import dataloader
from bench.audit.dataloader import Loaded, Training
from bench.cli import audit_tables as audits
from bench.records.outcome import Oom

OOM = Oom(rank=0, phase="audit", reason="CUDA out of memory")


def loaded(rank: int = 0, fetch_s: Sequence[float] = (0.1, 0.1), window_s: float | None = None) -> Loaded:
    return Loaded(
        rank=rank,
        start_s=1.0,
        fetch_times_s=tuple(fetch_s),
        to_device_times_s=(0.0,) * len(fetch_s),
        window_s=window_s or sum(fetch_s),
    )


def trained(samples_per_s: float, waits: float | None = 0.0) -> Training:
    return Training(batch_per_rank=2, samples_per_s_global=samples_per_s, dataload_wait_share=waits)


@pytest.mark.parametrize(
    ("training", "word"),
    [
        (None, "NO TRAINING FIGURE"),
        (trained(10), "FED"),
        (trained(10, None), "FED"),
        (trained(40 / 1.5), "FED"),
        (trained(30), "TIGHT"),
        (trained(10, 0.1), "TIGHT"),
        (trained(36.5), "STARVED"),
        (trained(80), "STARVED"),
        (trained(10, 0.25), "STARVED"),
    ],
)
def test_a_loader_is_judged_by_what_it_delivers_and_how_long_training_waits(
    training: Training | None, word: str
) -> None:
    verdict = dataloader.judge([loaded(0), loaded(1)], 2, 2, 0, training, None)  # 10 batches/s a rank: 40 samples/s
    assert verdict.word == word
    assert verdict.samples_per_s_global == pytest.approx(40)
    assert verdict.says.startswith("the loader delivers 40.0 samples/s")


def test_the_slowest_rank_gates_what_all_deliver() -> None:
    verdict = dataloader.judge([loaded(0, (0.1, 0.1)), loaded(1, (0.4, 0.4))], 2, 3, 0, trained(1), None)
    assert verdict.samples_per_s_global == pytest.approx(2 * 3 * 2.5)


def test_the_whole_window_counts_not_its_bursts() -> None:
    bursts = loaded(0, (0.001, 0.001, 0.299) * 2, window_s=0.61)
    verdict = dataloader.judge([bursts], 1, 1, 3, trained(9), None)
    assert verdict.samples_per_s_global == pytest.approx(6 / 0.61)
    assert verdict.word == "STARVED"
    assert verdict.says.endswith("use more workers, or cheaper samples")


def test_a_loader_that_did_not_get_through_has_no_figure() -> None:
    for ranks, ended, says in (
        ([loaded(0)], None, "rank 1 left no record"),
        ([loaded(0), loaded(1)], OOM, "oom, rank 0 in audit: CUDA out of memory"),
    ):
        verdict = dataloader.judge(ranks, 2, 2, 0, trained(1), ended)
        assert (verdict.word, verdict.says, verdict.samples_per_s_global) == ("NOT MEASURED", says, None)


def test_a_rank_is_told_by_mean_median_and_95th_percentile() -> None:
    fetch_s = [0.010] * 18 + [0.020, 0.100]
    verdict = dataloader.judge([loaded(0, fetch_s)], 1, 2, 0, None, None)
    table = audits.dataloader("ddp", [loaded(0, fetch_s)], 2, verdict)
    row = dict(zip(table.headers, table.rows[0], strict=True))
    assert (row["fetch mean ms"], row["fetch median ms"], row["fetch p95 ms"]) == ("15.00", "10.00", "20.00")
    assert (row["batches/s"], row["samples/s"], row["start ms"]) == ("66.7", "133", "1000")
    assert "minimum 66.7, mean 66.7, maximum 66.7 batches/s" in table.notes[1]
