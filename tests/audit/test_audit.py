"""Audits and hangs: what is said of ranks, from what they left behind. Nothing runs here but the judging."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from examples import ok, result
from typer.testing import CliRunner

import bench.runner
from bench.audit import collectives, dataloader, params
from bench.audit.collectives import Issued
from bench.audit.dataloader import Loaded, Training
from bench.audit.params import Looked, Parameter
from bench.backends import Family
from bench.cli import app, selection
from bench.diagnosis.call_site import Frame, site
from bench.diagnosis.collectives import first_difference
from bench.diagnosis.hang import explain
from bench.records.hang import Collective, Stuck
from bench.records.outcome import Failed, Hang, Oom, Result
from bench.report.tables import audits

OOM = Oom(rank=0, phase="audit", reason="CUDA out of memory")


def one(
    number: int, operation: str = "all_reduce", shape: Sequence[int] = (8,), *, finished: bool = True, **changes: Any
) -> Collective:
    fields = {"group": "0", "dtypes": ("Float",), "site": "forward (model/policy.py:1)"} | changes
    return Collective(number=number, operation=operation, shapes=(tuple(shape),), finished=finished, **fields)


def series(*operations: str, first: int = 1) -> list[Collective]:
    return [one(number, operation) for number, operation in enumerate(operations, first)]


# --- collectives: where ranks part ----------------------------------------------------------------------------------

ALIKE = {
    "the same": [series("all_reduce", "barrier"), series("all_reduce", "barrier")],
    "nothing at all": [[], []],
    "one recorder has forgotten the oldest": [series("a", "b", "c"), series("b", "c", first=2)],
    "one has finished what the other waits in": [[one(1)], [one(1, finished=False)]],
    "asked for from elsewhere": [[one(1)], [one(1, site="other (model/vision.py:2)")]],
    "uneven by its nature": [[one(1, "all_to_all", (4,))], [one(1, "all_to_all", (9,))]],
    "a group that a rank is no member of": [[one(1), one(1, group="7")], [one(1)]],
}
UNLIKE: dict[str, tuple[list[list[Collective]], str, int]] = {
    "operation": ([series("all_reduce", "all_gather"), series("all_reduce", "barrier")], "0", 2),
    "shape": ([[one(1)], [one(1, shape=(9,))]], "0", 1),
    "dtype": ([[one(1)], [one(1, dtypes=("BFloat16",))]], "0", 1),
    "one goes on alone": ([series("a", "b"), series("a")], "0", 2),
    "one never began": ([series("a"), []], "0", 1),
    "in a group of its own": ([[one(1), one(1, group="7")], [one(1), one(1, "barrier", group="7")]], "7", 1),
    "the first of several": ([series("a", "b", "c"), series("a", "x", "y")], "0", 2),
}


@pytest.mark.parametrize("name", ALIKE)
def test_collectives_that_are_alike(name: str) -> None:
    assert first_difference(dict(enumerate(ALIKE[name]))) is None


@pytest.mark.parametrize("name", UNLIKE)
def test_the_first_collective_that_is_not(name: str) -> None:
    ranks, group, number = UNLIKE[name]
    found = first_difference(dict(enumerate(ranks)))
    assert found is not None
    assert (found.group, found.number) == (group, number)
    assert list(found.issued) == [0, 1]


def judged(*ranks: Sequence[Collective], ended: Oom | Hang | Failed | None = None, world_size: int = 2) -> Any:
    issued = [Issued(rank=rank, collectives=tuple(made)) for rank, made in enumerate(ranks)]
    return collectives.judge(issued, world_size, ended)


def test_ranks_of_which_nothing_was_recorded_are_not_called_the_same() -> None:
    assert judged((), ()).word == "NOT SEEN"
    assert judged((), world_size=1).word == "SAME"


def test_ranks_are_the_same_only_when_all_have_spoken_and_ended_well() -> None:
    good = series("all_reduce", "all_gather")
    assert judged(good, good).word == "SAME"
    assert judged(good, good).says == "all 2 ranks issue the same 2 collectives"
    assert "nothing to disagree with" in judged(good, world_size=1).says
    assert judged(good).says == "rank 1 left no record"
    ended = judged(good, good, ended=OOM)
    assert ended.word == "NOT SEEN"
    assert ended.says == "the steps did not end: oom, rank 0 in audit: CUDA out of memory"


def test_ranks_that_part_are_named_with_what_each_asked_for() -> None:
    ranks = [[one(1), one(2, "all_gather", (4, 2), site="forward (model/vision.py:7)")], [one(1), one(2, "barrier")]]
    verdict = judged(*ranks)
    assert verdict.says == (
        "ranks issue unlike collectives: the ranks part at collective 2; rank 0 asked for all_gather 4x2 of Float in"
        " forward (model/vision.py:7); rank 1 asked for barrier 8 of Float in forward (model/policy.py:1)"
    )
    counts = {(site.operation, site.site.split()[0]): site.counts for site in verdict.sites}
    assert counts == {
        ("all_reduce", "forward"): (1, 1),
        ("all_gather", "forward"): (1, 0),
        ("barrier", "forward"): (0, 1),
    }
    table = audits.collectives("fsdp", verdict)
    assert table.bold == {(0, "rank 0"), (0, "rank 1"), (1, "rank 0"), (1, "rank 1")}
    assert [row[0] for row in table.rows] == ["all_gather", "barrier", "all_reduce"]


def test_what_torch_refused_is_told_with_the_places_that_asked() -> None:
    refusal = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLGATHER, TensorShape=[147936], TensorDtypes=Float), but Rank"
        " 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=_ALLGATHER_BASE, TensorShape=[6, 8])."
    )
    issued = [
        Issued(rank=0, collectives=tuple(series("a", "a")), failed_in="forward (model/vision.py:119)"),
        Issued(rank=1, collectives=tuple(series("a", "a")), failed_in=None),
    ]
    verdict = collectives.judge(issued, 2, Failed(rank=1, phase="audit", reason=refusal))
    assert verdict.word == "DIFFERENT"
    assert verdict.says == (
        "ranks issue unlike collectives: the ranks part at collective 3; rank 0 asked for allgather_base 6x8 in forward"
        " (model/vision.py:119); rank 1 asked for allgather 147936 in an unknown place"
    )


def test_a_rank_that_raises_is_told_and_not_called_a_difference() -> None:
    asked, raised = [one(1), one(2)], [one(1)]
    planted = Failed(fault="error", rank=1, phase="audit", reason="ValueError: planted")
    verdict = judged(asked, raised, ended=planted)
    assert verdict.word == "NOT SEEN"
    assert verdict.says == "the steps did not end: failed, rank 1 in audit: ValueError: planted"
    assert judged(asked, raised, ended=planted.model_copy(update={"fault": "desync"})).word == "DIFFERENT"
    other = judged(asked, [one(1), one(2, "barrier")], ended=planted)
    assert other.word == "DIFFERENT"  # who raises then may do so for that


def test_a_collective_that_was_refused_is_told_by_its_place_and_a_group_by_its_name() -> None:
    issued = [
        Issued(rank=0, collectives=(one(1), one(2))),
        Issued(rank=1, collectives=(one(1),), failed_in="forward (toy/toy.py:58)"),
    ]
    verdict = collectives.judge(issued, 2, Failed(fault="desync", rank=1, phase="audit", reason="unlike"))
    assert verdict.says.endswith("; rank 1 failed in forward (toy/toy.py:58)")
    apart = [
        Issued(rank=rank, collectives=(one(1, operation).model_copy(update={"group": "7"}),))
        for rank, operation in enumerate(("all_reduce", "barrier"))
    ]
    assert "the ranks part at collective 1 of group 7" in collectives.judge(apart, 2, None).says


def test_ranks_that_hang_are_judged_by_what_they_said_when_asked() -> None:
    hang = Hang(reason="no progress", stuck=(stuck(0, [one(1), one(2)]), stuck(1, [one(1), one(2, "barrier")])))
    verdict = collectives.judge([], 2, hang)
    assert verdict.says.startswith("ranks issue unlike collectives: the ranks part at collective 2; rank 0 asked for")


# --- hangs ----------------------------------------------------------------------------------------------------------


def stuck(rank: int, made: Sequence[Collective], place: str = "forward (toy/toy.py:5)") -> Stuck:
    return Stuck(
        rank=rank, phase="measure", step=3, steps=9, place=place, stacks="", collectives=tuple(made), log_tail=""
    )


def test_a_hang_says_who_waits_and_who_never_came() -> None:
    waiting, away = stuck(0, [one(1), one(2, finished=False)]), stuck(1, [one(1)], "sleep (toy/toy.py:9)")
    assert explain([waiting, away], 2) == (
        "rank 0 waits at collective 2, all_reduce 8 of Float in forward (model/policy.py:1);"
        " rank 1 is in sleep (toy/toy.py:9), past collective 1"
    )


def test_a_rank_that_asks_for_several_collectives_at_once_waits_at_the_oldest() -> None:
    ahead = stuck(0, [one(21, finished=False), one(22), one(23, finished=False), one(24, "barrier", finished=False)])
    assert "rank 0 waits at collective 23, all_reduce 8" in explain([ahead, stuck(1, [one(22)])], 2)


def test_a_hang_says_where_ranks_part() -> None:
    ranks = [stuck(0, [one(1), one(2, finished=False)]), stuck(1, [one(1), one(2, "barrier", finished=False)])]
    assert explain(ranks, 2).startswith("the ranks part at collective 2; rank 0 asked for all_reduce 8 of Float in")


def test_a_hang_groups_ranks_that_do_the_same_and_names_those_that_are_silent() -> None:
    ranks = [stuck(rank, [one(5, finished=False)]) for rank in (2, 0)] + [stuck(3, [])]
    assert explain(ranks, 6) == (
        "ranks 0, 2 wait at collective 5, all_reduce 8 of Float in forward (model/policy.py:1);"
        " rank 3 is in forward (toy/toy.py:5), before any collective;"
        " ranks 1, 4, 5 did not answer: stopped, or busy in native code"
    )


TORCH = "/x/site-packages/torch"
STEPS = str(Path(bench.runner.__file__).parent / "steps.py")
MODULE = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 10)
SITES = {
    "the workload's innermost": (
        [Frame("all_reduce", f"{TORCH}/distributed.py", 1), Frame("decide", "/w/model/branches.py", 42), MODULE],
        "decide (model/branches.py:42)",
    ),
    "what the runner's step called": (
        [
            Frame("_reduce", f"{TORCH}/a.py", 1),
            Frame("backward", "/x/site-packages/accelerate/accelerator.py", 2),
            Frame("step", STEPS, 44),
        ],
        "backward, called by step (runner/steps.py:44)",
    ),
    "not how a module is called": (
        [
            MODULE,
            Frame("step", STEPS, 42),
        ],
        "step (runner/steps.py:42)",
    ),
    "only libraries": ([Frame("run", f"{TORCH}/a.py", 3)], "run (torch/a.py:3)"),
    "nothing": ([], "an unknown place"),
}


@pytest.mark.parametrize("name", SITES)
def test_the_place_that_a_stack_stands_for(name: str) -> None:
    frames, place = SITES[name]
    assert site(frames) == place


# --- the loader -----------------------------------------------------------------------------------------------------


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
    assert verdict.says.startswith("the loader delivers 40 samples/s")


def test_the_slowest_rank_gates_what_all_deliver() -> None:
    verdict = dataloader.judge([loaded(0, (0.1, 0.1)), loaded(1, (0.4, 0.4))], 2, 3, 0, trained(1), None)
    assert verdict.samples_per_s_global == pytest.approx(2 * 3 * 2.5)


def test_the_whole_window_counts_not_its_bursts() -> None:
    bursts = loaded(0, (0.001, 0.001, 0.299) * 2, window_s=0.61)
    verdict = dataloader.judge([bursts], 1, 1, 3, trained(9), None)
    assert verdict.samples_per_s_global == pytest.approx(6 / 0.61)
    assert verdict.word == "STARVED"
    assert verdict.says.endswith("give it more workers, or samples that cost less")


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
    assert "66.7 batches/s at least, 66.7 in the mean, 66.7 at most" in table.notes[1]


def test_training_at_the_audited_batch_is_taken_and_no_other() -> None:
    slow, fast = result(ok((0.1,) * 3, (0.2,) * 3), batch=2), result(batch=8)
    oom, short = result(OOM, batch=16), result(batch=4)
    short = short.model_copy(update={"attempt": short.attempt.model_copy(update={"short": True})})
    stored: list[Result] = [slow, fast, oom, short]
    found = {batch: audits.training(stored, batch) for batch in (2, 4, 8, 16, None)}
    assert {batch: one and one.batch_per_rank for batch, one in found.items()} == {
        2: 2,
        4: None,
        8: 8,
        16: None,
        None: 8,
    }
    assert found[2] is not None
    assert found[2].samples_per_s_global == pytest.approx(2 * 2 / 0.2)
    assert found[2].dataload_wait_share == pytest.approx(0.1)
    assert audits.training([oom]) is None
    assert audits.training([]) is None


# --- parameters -----------------------------------------------------------------------------------------------------


def parameter(name: str, *, unused: int = 0, zero: int = 0, frozen: bool = False) -> Parameter:
    return Parameter(
        name=name,
        elements=10,
        requires_grad=not frozen,
        unused_in=tuple(range(unused)),
        zero_in=tuple(range(unused, unused + zero)),
    )


def looked(*parameters: Parameter, batches: int = 4) -> Looked:
    return Looked(rank=0, batches=batches, parameters=parameters)


def test_parameters_are_grouped_by_the_largest_module_that_is_alike() -> None:
    found = params.group(
        looked(
            parameter("scale"),
            parameter("vision.patch.weight", frozen=True),
            parameter("vision.layers.0.weight", frozen=True),
            parameter("head.inner.weight", unused=4),
            parameter("head.inner.bias", unused=4),
            parameter("head.outer.weight", unused=2),
            parameter("head.outer.bias", zero=4),
            parameter("last.weight", zero=3),
            parameter("last.bias"),
        )
    )
    assert [(one.name, one.state, one.batches, one.tensors, one.ddp_indices) for one in found] == [
        ("scale", "USED", 4, 1, (0,)),
        ("vision.*", "FROZEN", 4, 2, ()),
        ("head.inner.*", "UNUSED", 4, 2, (1, 2)),
        ("head.outer.weight", "UNUSED", 2, 1, (3,)),
        ("head.outer.bias", "ZERO-GRAD", 4, 1, (4,)),
        ("last.*", "USED", 4, 2, (5, 6)),
    ]


@pytest.mark.parametrize(
    ("unused", "family", "find", "good", "says"),
    [
        (0, "ddp", False, True, "every parameter in 4 batches: find_unused_parameters may stay off"),
        (0, "ddp", True, True, "find_unused_parameters may be turned off, which saves a walk"),
        (4, "ddp", False, False, "1 tensor (10 parameters) in any of 4 batches: DDP will fail or hang"),
        (1, "ddp", False, False, "in some of 4 batches: DDP will fail or hang"),
        (1, "ddp", True, True, "find_unused_parameters must stay on"),
        (4, "fsdp", False, True, "no matter here, but under ddp find_unused_parameters must be on"),
        (1, "deepspeed", False, True, "ranks with unlike samples may part (bench audit collectives)"),
        (4, "single", False, True, "no matter here"),
    ],
)
def test_unused_parameters_fail_where_ddp_does_not_look_for_them(
    unused: int, family: Family, find: bool, good: bool, says: str
) -> None:
    seen = looked(parameter("body.weight"), parameter("head.weight", unused=unused))
    verdict = params.judge(seen, family, find_unused=find, ended=None)
    assert verdict.good == good
    assert says in verdict.says


def test_a_look_that_did_not_end_is_no_verdict() -> None:
    for seen, ended in ((None, None), (None, OOM), (looked(parameter("weight")), OOM)):
        verdict = params.judge(seen, "fsdp", find_unused=False, ended=ended)
        assert not verdict.good
        assert "did not end" in verdict.says
        assert verdict.groups == ()


def test_gradients_of_zero_are_listed_when_asked_for() -> None:
    seen = looked(parameter("a", frozen=True), parameter("b.x", zero=4), parameter("b.y", zero=4), parameter("c"))
    verdict = params.judge(seen, "ddp", find_unused=False, ended=None)
    assert verdict.good
    asked, not_asked = (audits.params("ddp", verdict, zero_grad=zero_grad) for zero_grad in (True, False))
    assert [row[:4] for row in asked.rows] == [("ZERO-GRAD", "b.*", "2", "20"), ("FROZEN", "a", "1", "10")]
    assert [row[0] for row in not_asked.rows] == ["FROZEN"]
    assert "The gradient of 2 more tensors is zero everywhere: --zero-grad lists them." in not_asked.notes


@pytest.mark.parametrize("kind", ["collectives", "dataloader", "params"])
def test_every_audit_has_help(kind: str) -> None:
    done = CliRunner().invoke(app, ["audit", kind, "--help"])
    assert done.exit_code == 0
    assert f" {kind} " in done.output


def test_an_audit_at_another_batch_looks_at_the_cells_that_were_trained(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.yaml"
    for batches in ("matrix: {backend: [ddp, fsdp], batch: [1, probe]}", "matrix: {backend: ddp, batch: probe}"):
        matrix.write_text(f"workload: {{preset: tiny}}\n{batches}\n")
        trained = [plan.cell for plan in selection.read(matrix).plans]
        assert [plan.cell for plan in selection.read(matrix, batch=4).plans] == trained
        assert [plan.cell for plan in selection.read(matrix, backend="ddp", batch=4).plans] == trained[:1]
