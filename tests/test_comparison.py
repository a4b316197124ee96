"""Fair comparison, advice, and the rows for other programs: from built results, and from the published table."""

import io
import math
from typing import Any

import pandas as pd
import pytest
from examples import CUDA_MACHINE, MACHINE, cell, ok, rank, result, vram

from bench.outcome import Ok, Oom, Outcome, Reported, Result
from bench.report import frame
from bench.report.advice import advise, sentences
from bench.report.comparison import compare, refusals, table
from bench.report.contract import contract_of, differing
from bench.report.flags import flags
from bench.report.summary import summarize

CAPACITY_BYTES = 85_900_000_000
SDPA, EAGER = {"attention": "sdpa", "grad_ckpt": True}, {"attention": "eager", "grad_ckpt": False}
PUBLISHED = [
    # backend, cams, switches, batch, allocated GB, reserved GB, step ms
    ("fsdp", 1, SDPA, 8, 43.86, 70.14, 3917),
    ("fsdp", 1, SDPA, 12, 51.29, 78.07, 5831),
    ("fsdp", 4, SDPA, 4, 39.33, 61.30, 5169),
    ("fsdp", 4, SDPA, 8, 49.68, 77.90, 9186),
    ("fsdp", 4, SDPA, 10, 54.85, 83.86, 12874),
    ("fsdp", 4, SDPA, 12, 61.02, 83.59, 19435),
    ("fsdp", 1, EAGER, 2, 58.74, 65.67, 1162),
    ("fsdp", 1, EAGER, 4, None, None, None),
    ("zero2", 1, SDPA, 8, 36.22, 36.45, 4416),
    ("zero2", 1, SDPA, 16, 46.25, 46.74, 6357),
    ("zero2", 1, SDPA, 24, 56.31, 57.04, 8134),
]
"""Published 8xA100 matrix; GB = 1e9 bytes."""


def published(backend: str, cams: int, switches: dict[str, Any], batch: int, *figures: float | None) -> Result:
    allocated, reserved, step_ms = figures
    axes = {"num_cams": cams, **switches}
    outcome: Outcome = Oom(rank=0, phase="forward", reason="out of memory")
    if allocated is not None and reserved is not None and step_ms is not None:
        outcome = Reported(
            source="published 8xA100 matrix",
            step_time_s_per_rank=(step_ms / 1e3,),
            peak_allocated_bytes=round(allocated * 1e9),
            peak_reserved_bytes=round(reserved * 1e9),
            capacity_bytes=CAPACITY_BYTES,
        )
    return result(outcome, backend=backend, batch=batch, axes=axes, machine=CUDA_MACHINE, num_processes=8)


@pytest.fixture(scope="module")
def rows() -> list[Result]:
    return [published(*row) for row in PUBLISHED]


def test_best_and_matched_batches_stand_side_by_side(rows: list[Result]) -> None:
    summary = summarize(rows)
    shown = table(summary, compare(summary))
    told = {(row[0], row[3]): row[-1] for row in shown.rows}
    assert shown.headers[:4] == ("num_cams", "attention", "grad_ckpt", "how")
    assert told["1", "best against best"] == "zero2 1.43×"
    assert told["1", "matched batch 8"] == "fsdp 1.13×"
    assert len(told) == 2  # zero2 has no rows of four cameras, nor of eager attention


def test_the_peak_is_the_best_batch_that_does_not_thrash(rows: list[Result]) -> None:
    best = {
        (c.cell.backend, c.cell.options["num_cams"], c.cell.options["attention"]): c.best for c in summarize(rows).cells
    }
    batches = {name: row.batch_per_rank for name, row in best.items() if row}
    assert batches == {
        ("fsdp", 1, "sdpa"): 12,
        ("fsdp", 4, "sdpa"): 8,
        ("fsdp", 1, "eager"): 2,
        ("zero2", 1, "sdpa"): 24,
    }
    doubts = flags(summarize(rows))
    assert [doubt for doubt in doubts if "thrashing" in doubt] == [
        "fsdp, num_cams 4, attention sdpa, grad_ckpt on, batch 10: thrashing, 97.6 % of capacity at 6.21 samples/s;"
        " batch 8 does 6.97.",
        "fsdp, num_cams 4, attention sdpa, grad_ckpt on, batch 12: thrashing, 97.3 % of capacity at 4.94 samples/s;"
        " batch 8 does 6.97.",
    ]


def test_unlike_settings_are_refused_by_name(rows: list[Result]) -> None:
    unlike = [rows[0], published("zero2", 1, EAGER, 2, 50.0, 60.0, 1000)]
    summary = summarize(unlike)
    found = compare(summary)
    assert found.speed_ups == ()
    assert refusals(summary, found) == [
        "fsdp, num_cams 1, attention sdpa, grad_ckpt on is not compared with zero2, num_cams 1, attention eager,"
        " grad_ckpt off: they differ in attention, grad_ckpt."
    ] or refusals(summary, found) == [
        "fsdp, attention sdpa, grad_ckpt on is not compared with zero2, attention eager, grad_ckpt off: they differ in"
        " attention, grad_ckpt."
    ]


def test_an_override_is_loud_and_marks_each_figure(rows: list[Result]) -> None:
    summary = summarize([rows[0], published("zero2", 1, EAGER, 8, 50.0, 60.0, 1000)])
    shown = table(summary, compare(summary, allowed=frozenset({"attention", "grad_ckpt"})))
    assert shown.rows
    assert all("UNLIKE in attention, grad_ckpt" in row[-1] for row in shown.rows)
    assert shown.notes[0].startswith("UNLIKE: these figures compare results that differ in attention, grad_ckpt")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mixed_precision": "no"}, "mixed_precision"),
        ({"num_processes": 4}, "num_processes"),
        ({"workload": "my.module:Mine"}, "workload"),
        ({"measure": cell().measure.model_copy(update={"steps": 9})}, "steps"),
        ({"measure": cell().measure.model_copy(update={"seed": 9})}, "seed"),
        ({"train": cell().train.model_copy(update={"fused": True})}, "fused"),
        ({"memory_limit_bytes": 10}, "memory_limit_bytes"),
        ({"axes": {"n_obs_history": 6}}, "n_obs_history"),
        ({"machine": MACHINE.model_copy(update={"cpu": "Other CPU"})}, "hardware"),
        ({"machine": MACHINE.model_copy(update={"libraries": {"torch": "9"}})}, "versions"),
    ],
)
def test_each_field_of_the_contract_is_held(change: dict[str, Any], field: str) -> None:
    one = result(backend="ddp", axes={"n_obs_history": 1})
    other = result(backend="fsdp", **{"axes": {"n_obs_history": 1}, **change})
    assert field in differing(contract_of(one), contract_of(other), but="backend")
    summary = summarize([one, other])
    found = compare(summary)
    assert found.speed_ups == ()
    assert field in found.refused[0].fields


def test_optimizer_precision_is_part_of_the_contract() -> None:
    plain = [
        r.model_copy(update={"regime": r.regime.model_copy(update={"optimizer_dtype": "bfloat16"})}) for r in ok().ranks
    ]
    one, other = result(backend="ddp"), result(Ok(ranks=tuple(plain)), backend="zero2")
    assert "optimizer_dtype" in differing(contract_of(one), contract_of(other), but="backend")
    assert not compare(summarize([one, other])).speed_ups


def test_any_axis_can_be_compared_against_any_reference() -> None:
    results = [result(ok((s,) * 3, (s,) * 3), axes={"attention": a}) for a, s in (("sdpa", 0.1), ("eager", 0.2))]
    summary = summarize(results)
    [best, matched] = compare(summary, "attention", reference="eager").speed_ups
    assert best.reference.settings["attention"] == "eager"
    assert best.ratio == matched.ratio == pytest.approx(2)
    assert not compare(summary).speed_ups
    shown = table(summary, compare(summary, "attention", reference="eager"))
    assert shown.rows[0][-1].startswith("sdpa 2.00×")


def test_a_ratio_has_an_interval_and_noise_is_called_even() -> None:
    steady, noisy = (0.1, 0.1001, 0.0999) * 4, (0.05, 0.16, 0.09) * 4
    summary = summarize([result(ok(steady, steady)), result(ok(noisy, noisy, backend="fsdp"), backend="fsdp")])
    found = compare(summary).speed_ups[0]
    assert found.interval is not None
    assert found.interval[0] < 1 < found.interval[1]
    assert math.sqrt(found.interval[0] * found.interval[1]) == pytest.approx(found.ratio)
    assert table(summary, compare(summary)).rows[0][-1].startswith("even, 1.00×")


def test_advice_leaves_headroom_names_alternatives_and_what_it_rests_on(rows: list[Result]) -> None:
    summary = summarize(rows)
    told = sentences(summary, advise(summary))
    assert told[0].startswith(
        "For num_cams 1: train with zero2, attention sdpa, grad_ckpt on, batch 24: 23.6 samples/s, 66.4 %"
        " of capacity held, 33.6 % of capacity to spare. Rests on figures from elsewhere: published 8xA100 matrix."
    )
    assert told[1].startswith("For num_cams 1: or fsdp, attention sdpa, grad_ckpt on, batch 8: 16.3 samples/s")
    assert told[2].startswith("For num_cams 4: train with fsdp")
    assert "batch 4: 6.19 samples/s" in told[2]  # batch 8 holds 90.7 %
    assert told[3].startswith("For num_cams 4: or faster, but beyond the headroom: fsdp")


def test_rows_for_other_programs_have_units_and_nulls() -> None:
    results = [
        result(ok((0.1, 0.1, 0.1, 0.1), (0.2, 0.2, 0.2, 0.2))),
        result(Oom(rank=1, phase="bwd", reason="x"), batch=4),
    ]
    summary = summarize(results)
    from_csv = pd.read_csv(io.StringIO(frame.text(summary, "csv")))
    from_json = pd.read_json(io.StringIO(frame.text(summary, "json")))
    from_parquet = pd.read_parquet(io.BytesIO(frame.parquet(summary)))
    for found in (from_csv, from_json, from_parquet):
        assert list(found["outcome"]) == ["ok", "oom"]
        assert found["samples_per_s_global"][0] == pytest.approx(2 * 2 / 0.2)
        assert pd.isna(found["samples_per_s_global"][1])
        assert found["straggler_spread"][0] == pytest.approx(1.0)
        assert found["reason"][1] == "rank 1 in bwd: x"


def test_losses_unlike_those_of_the_others_are_pointed_out() -> None:
    alike = [result(ok(backend=b, losses=(1.0, 0.75, 0.5)), backend=b) for b in ("ddp", "fsdp")]
    off = result(ok(backend="zero2", losses=(1.2, 0.95, 0.7)), backend="zero2")
    assert not [doubt for doubt in flags(summarize(alike)) if "losses" in doubt]
    [doubt] = [doubt for doubt in flags(summarize([*alike, off])) if "losses" in doubt]
    assert doubt.startswith("zero2, batch 2: its losses are")
    other_samples = result(ok(backend="zero2", losses=(1.2, 0.95, 0.7)), backend="zero2", batch=4)
    assert not [doubt for doubt in flags(summarize([*alike, other_samples])) if "losses" in doubt]


def test_allocation_retries_are_thrashing() -> None:
    memory = vram(70, 79).model_copy(update={"alloc_retries": 3})
    outcome = Ok(ranks=(rank(0, memory=memory), rank(1, memory=memory)))
    summary = summarize([result(outcome, machine=CUDA_MACHINE)])
    assert summary.cells[0].best is None
    assert any("6 allocation retries" in doubt for doubt in flags(summary))
