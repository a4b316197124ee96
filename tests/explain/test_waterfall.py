"""Bars between two steps, their sentence, and the advice for one."""

from dataclasses import replace

import pytest
from examples import cell as a_cell
from made_traces import DEVICE, a_trace, kernel, mark

from bench.explain import parts
from bench.explain.advice import advice, matrix
from bench.explain.divide import divide
from bench.explain.picture import sections
from bench.explain.shown import Tried, advised, difference, memory, sentences, step
from bench.explain.waterfall import LAUNCH, OVERHEAD, Explained, Judged, waterfall
from bench.records.cell import Train
from bench.records.peak import BUFFERS, AtPeak
from bench.report.render.html import render


def explained(name: str, measured_s: float, unprofiled_s: float) -> Explained:
    return Explained(
        name=name, divisions=divide([a_trace(0, *DEVICE)]), measured_s=measured_s, unprofiled_s=unprofiled_s
    )


def test_bars_lead_from_one_measured_step_to_the_other() -> None:
    found = waterfall(explained("a", 0.090, 0.095), explained("b", 0.120, 0.097))
    bars = {bar.name: bar.difference_s for bar in found.bars if bar.difference_s}
    assert bars == {OVERHEAD: pytest.approx(0.002), LAUNCH: pytest.approx(0.028)}
    assert found.sentence == "b takes 1.33× the step of a: no part differs by more than noise."
    assert "30.00 ms" in found.doubt
    assert explained("a", 0.09, 0.095).overhead == pytest.approx(0.1 / 0.095 - 1)


def test_the_sentence_is_as_sure_as_a_report_and_names_no_part_that_the_profiler_made() -> None:
    before, after = explained("a", 0.100, 0.100), explained("b", 0.200, 0.101)
    found = waterfall(before, after, Judged((1.6, 2.5), "too close to call"))
    assert found.sentence.startswith("b takes 2.00× the step of a (1.60 to 2.50, too close to call): no part differs")
    assert found.doubt
    longer = replace(
        after, divisions=divide([a_trace(0, mark(parts.STEP, 0, 200), *DEVICE[1:], kernel("gemm", 100, 190, 90))])
    )
    told = waterfall(before, replace(longer, unprofiled_s=0.2), Judged((1.6, 2.5)))
    assert told.sentence.startswith("b is 2.00× slower than a (1.60 to 2.50): 9")
    back = waterfall(replace(longer, unprofiled_s=0.2), before, Judged((0.4, 0.625)))
    assert back.sentence.startswith("a is 2.00× faster than b (1.60 to 2.50): 9")
    more = waterfall(before, replace(longer, unprofiled_s=0.2), Judged((0.4, 0.6), samples=4))
    assert more.sentence.startswith(
        "b takes 2.00× the step of a for 4× the samples: for as many samples, it is 2.00× faster (1.67 to 2.50)."
        " Of the difference between the steps, 9"
    )
    doubted = waterfall(before, replace(longer, unprofiled_s=0.3), Judged((1.6, 2.5)))
    assert doubted.sentence == "b is 2.00× slower than a (1.60 to 2.50)."


def test_tables_and_the_page_sum_to_the_step() -> None:
    one = explained("<a>", 0.090, 0.095)
    shown = step(one)
    numbers = [float(row[1]) for row in shown.rows]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1]) == pytest.approx(90)
    found = waterfall(one, explained("b", 0.120, 0.097))
    assert [row[0] for row in difference(found).rows][-1] == "step"
    text = render(sections(["A sentence."], [one, found.after], found, [shown]), "A & B")
    assert "<h1>A &amp; B</h1>" in text
    assert "One step of &lt;a&gt; over time" in text
    assert text.count("<figure") == 3


def test_memory_at_the_peak_is_beside_the_plan() -> None:
    found = AtPeak(
        when="bwd", parts={"weights": 2**20, "activations of Block": 2**21, BUFFERS: 2**20}, unused_bytes=2**22
    )
    shown = memory(replace(explained("a", 0.1, 0.1), memory=found, planned={"weights": 2**20, "transport": 2**19}))
    assert shown.rows == (
        ("activations", "2.00", "n/a"),
        ("… activations of Block", "2.00", "n/a"),
        ("weights", "1.00", "1.00"),
        ("buckets and other buffers", "1.00", "n/a"),
        ("transport", "0.00", "0.50"),
        ("peak", "4.00", "1.50"),
    )
    assert "backward" in shown.notes[0]
    assert "4.00 MiB more" in shown.notes[1]


def test_the_parts_are_those_of_the_critical_rank_if_the_report_names_one() -> None:
    both = divide([a_trace(rank, *DEVICE) for rank in (0, 1)])
    assert Explained(name="a", divisions=both).pace.rank == 0
    assert Explained(name="a", divisions=both, critical=1).pace.rank == 1
    assert "rank 1, the critical rank" in " ".join(sentences(Explained(name="a", divisions=both, critical=1)))


def test_advice_is_bounded_by_what_it_addresses_and_each_setting_is_a_cell_of_its_matrix() -> None:
    cell = a_cell("fsdp2", options={"grad_ckpt": True})
    found = advice(explained("a", 0.1, 0.1), cell)
    bounds = {one.words: pytest.approx(one.bound_s) for one in found}
    assert bounds["fused=true"] == 0.020
    assert bounds["reshard_after_forward=false"] == 0.008
    assert bounds["grad_ckpt=false"] == 0.005
    assert bounds["dataloader_workers=2"] == 0.005
    assert bounds["accumulate=2"] == 0.010  # half of the optimizer, for as many samples
    assert [one.bound_s for one in found] == sorted((one.bound_s for one in found), reverse=True)
    content = {"name": "run", "workload": {"name": "toy:Toy"}, "exclude": [{"a": 1}]}
    written = matrix(content, {"backend": "fsdp2"}, cell, 4, found)
    assert written["name"] == "run-try"
    assert "exclude" not in written
    assert written["include"][0] == {"backend": "fsdp2", "batch": 4, found[0].name: found[0].value}  # type: ignore[index,call-overload]
    assert written["matrix"]["grad_ckpt"] is True  # type: ignore[index,call-overload]
    assert written["matrix"]["accumulate"] == 1  # type: ignore[index,call-overload]
    assert "bucket_mb" not in written["matrix"]  # type: ignore[operator]
    tried = {"fused=true": Tried(0.09, 1.111, (0.95, 1.3), "too close to call")}
    shown = advised(found, explained("a", 0.1, 0.1), 0.1, tried)
    (row,) = [row for row in shown.rows if row[0] == "fused=true"]
    assert row[3:7] == ("90.00", "+10.00", "1.11×", "0.95 to 1.30")
    assert row[7] == "too close to call"


def test_a_given_global_batch_is_not_enlarged() -> None:
    found = advice(explained("a", 0.1, 0.1), a_cell("fsdp2", train={"global_batch": 32}))
    assert "accumulate" not in {one.name for one in found}


def test_buckets_of_ddp_are_tried_larger_and_smaller_where_it_waits_for_a_reduction() -> None:
    reduces = [one._replace(name=one.name.replace("AllGather", "AllReduce")) for one in DEVICE]
    step_of = Explained(name="a", divisions=divide([a_trace(0, *reduces)]), measured_s=0.1, unprofiled_s=0.1)

    def bounds(**changes: object) -> dict[str, float]:
        found = advice(step_of, a_cell(**{"backend": "ddp", "num_processes": 2, **changes}))
        return {one.words: one.bound_s for one in found if one.name == "bucket_mb"}

    assert bounds() == {"bucket_mb=100": pytest.approx(0.008), "bucket_mb=6": pytest.approx(0.008)}
    assert bounds(train=Train(bucket_mb=2)).keys() == {"bucket_mb=8"}
    assert not bounds(backend="fsdp2")
    cell = a_cell("ddp", num_processes=2)
    written = matrix({}, {"backend": "ddp"}, cell, 4, [one for one in advice(step_of, cell) if one.name == "bucket_mb"])
    tried = [written["matrix"], *written["include"]]  # type: ignore[list-item,misc]
    assert [one["bucket_mb"] for one in tried] == [25, 100, 6]  # type: ignore[index,call-overload]
