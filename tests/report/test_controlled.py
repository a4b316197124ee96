"""What must agree before two results are compared."""

from typing import Any

import pytest
from examples import MACHINE, cell, ok, result

from bench.records.machine import Machine
from bench.records.outcome import Ok
from bench.report.controlled import controlled_of, unlike_fields
from bench.report.speedup import compare_axis
from bench.report.summary import summarize
from bench.report.tables.speedup import faster


def with_hardware(**changes: int) -> Machine:
    return MACHINE.model_copy(update={"hardware": MACHINE.hardware.model_copy(update=changes)})


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
        ({"machine": MACHINE.model_copy(update={"threads": {}})}, "thread_settings"),
        ({"machine": with_hardware(cores=64)}, "cpu_cores"),
        ({"machine": with_hardware(memory_bytes=377 * 2**30)}, "device_memory_bytes"),
    ],
)
def test_each_field_of_the_contract_is_held(change: dict[str, Any], field: str) -> None:
    one = result(backend="ddp", axes={"n_obs_history": 1})
    other = result(backend="fsdp", **{"axes": {"n_obs_history": 1}, **change})
    assert field in unlike_fields(controlled_of(one), controlled_of(other), but="backend")
    summary = summarize([one, other])
    found = compare_axis(summary)
    assert found.speed_ups == ()
    assert field in found.refused[0].fields


def test_weights_are_held_where_both_sides_have_them() -> None:
    bf16 = cell().train.model_copy(update={"weights": "bf16"})
    ddp, cast, fsdp = (
        result(backend="ddp"),
        result(backend="ddp", train=bf16),
        result(ok(backend="fsdp"), backend="fsdp"),
    )
    assert unlike_fields(controlled_of(ddp), controlled_of(cast), but="backend") == ("weights",)
    assert len(compare_axis(summarize([ddp, cast]), "weights").speed_ups) == 2
    for one in (ddp, cast):
        assert unlike_fields(controlled_of(one), controlled_of(fsdp), but="backend") == ()
        summary = summarize([one, fsdp])
        assert len(compare_axis(summary).speed_ups) == 2
        assert "weights" not in summary.columns
    assert "weights" in summarize([ddp, cast, fsdp]).columns


def test_what_the_kernel_keeps_of_the_memory_is_no_other_machine() -> None:
    updated = with_hardware(memory_bytes=int(15.6 * 2**30))
    summary = summarize([result(), result(ok(backend="fsdp"), backend="fsdp", machine=updated)])
    assert len(compare_axis(summary).speed_ups) == 2
    assert "machine" not in summary.columns


def test_optimizer_precision_is_part_of_the_contract() -> None:
    plain = [
        r.model_copy(update={"regime": r.regime.model_copy(update={"optimizer_dtype": "bfloat16"})}) for r in ok().ranks
    ]
    one, other = result(backend="ddp"), result(Ok(ranks=tuple(plain)), backend="zero2")
    assert "optimizer_dtype" in unlike_fields(controlled_of(one), controlled_of(other), but="backend")
    assert not compare_axis(summarize([one, other])).speed_ups


def test_machines_of_one_name_are_numbered_and_a_commit_is_no_other_machine() -> None:
    newer = MACHINE.model_copy(update={"libraries": {**MACHINE.libraries, "torch": "2.0.0"}})
    later = MACHINE.model_copy(update={"git_commit": "f" * 40})
    summary = summarize([result(), result(machine=newer), result(machine=later, batch=4)])
    assert summary.n_attempts == 3
    assert [[row.settings["machine"] for row in cell.rows] for cell in summary.cells] == [
        ["Example CPU (1)"] * 2,
        ["Example CPU (2)"],
    ]


def test_hardware_is_compared_by_its_name() -> None:
    slow, fast = (MACHINE.model_copy(update={"cpu": name}) for name in ("Slow CPU", "Fast CPU"))
    results = [result(ok((step_s,) * 3), machine=machine) for step_s, machine in ((0.2, slow), (0.1, fast))]
    summary = summarize(results)
    row, _ = faster(summary, compare_axis(summary, "hardware")).rows
    assert [text.partition(" 2.00×")[0] for text in row[-8:]] == [
        "best against best",
        "Fast CPU",
        "Slow CPU",
        "2",
        "10.0",
        "Fast CPU",
        "2",
        "20.0",
    ]
