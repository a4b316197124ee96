"""`bench audit collectives`: the verdict on ranks that differ or hang. Only the judging runs here, no ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from typer.testing import CliRunner

import bench.runner
from bench.audit import collectives
from bench.audit.collectives import Issued, Purpose, Use
from bench.cli import audit_tables as audits
from bench.cli import selection
from bench.cli.app import app
from bench.records.call_site import Frame, site
from bench.records.hang import Collective, Stuck, explain, first_difference
from bench.records.outcome import Failed, Hang, Oom

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
    assert "nothing to compare" in judged(good, world_size=1).says
    assert judged(good).says == "rank 1 left no record"
    ended = judged(good, good, ended=OOM)
    assert ended.word == "NOT SEEN"
    assert ended.says == "the steps did not finish: oom, rank 0 in audit: CUDA out of memory"


def test_ranks_that_part_are_named_with_what_each_asked_for() -> None:
    ranks = [[one(1), one(2, "all_gather", (4, 2), site="forward (model/vision.py:7)")], [one(1), one(2, "barrier")]]
    verdict = judged(*ranks)
    assert verdict.says == (
        "ranks issue different collectives: the ranks differ at collective 2; rank 0 issued all_gather 4x2 of Float in"
        " forward (model/vision.py:7); rank 1 issued barrier 8 of Float in forward (model/policy.py:1)"
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
        "ranks issue different collectives: the ranks differ at collective 3; rank 0 issued allgather_base 6x8 in"
        " forward (model/vision.py:119); rank 1 issued allgather 147936 in an unknown place"
    )


def test_refused_ranks_are_told_by_number() -> None:
    words = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType={})"
    reason = ", but ".join([words.format(10, "ALLGATHER"), words.format(2, "BARRIER")])
    says = collectives.judge([], 16, Failed(rank=2, phase="audit", reason=reason)).says
    assert says.index("rank 2 issued barrier") < says.index("rank 10 issued allgather")


def test_a_rank_that_raises_is_told_and_not_called_a_difference() -> None:
    asked, raised = [one(1), one(2)], [one(1)]
    planted = Failed(fault="error", rank=1, phase="audit", reason="ValueError: planted")
    verdict = judged(asked, raised, ended=planted)
    assert verdict.word == "NOT SEEN"
    assert verdict.says == "the steps did not finish: failed, rank 1 in audit: ValueError: planted"
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
    assert "the ranks differ at collective 1 of group 7" in collectives.judge(apart, 2, None).says


def test_ranks_that_hang_are_judged_by_what_they_said_when_asked() -> None:
    hang = Hang(reason="no progress", stuck=(stuck(0, [one(1), one(2)]), stuck(1, [one(1), one(2, "barrier")])))
    verdict = collectives.judge([], 2, hang)
    assert verdict.says.startswith("ranks issue different collectives: the ranks differ at collective 2; rank 0 issued")


# --- hangs ----------------------------------------------------------------------------------------------------------


def stuck(rank: int, made: Sequence[Collective], place: str = "forward (toy/toy.py:5)") -> Stuck:
    return Stuck(
        rank=rank, phase="measure", step=3, steps=9, place=place, stacks="", collectives=tuple(made), log_tail=""
    )


def test_a_hang_says_who_waits_and_who_never_came() -> None:
    waiting, away = stuck(0, [one(1), one(2, finished=False)]), stuck(1, [one(1)], "sleep (toy/toy.py:9)")
    assert explain([waiting, away], 2) == (
        "rank 0 waits at collective 2, all_reduce 8 of Float in forward (model/policy.py:1);"
        " rank 1 is in sleep (toy/toy.py:9), after collective 1"
    )


def test_a_rank_that_asks_for_several_collectives_at_once_waits_at_the_oldest() -> None:
    ahead = stuck(0, [one(21, finished=False), one(22), one(23, finished=False), one(24, "barrier", finished=False)])
    assert "rank 0 waits at collective 23, all_reduce 8" in explain([ahead, stuck(1, [one(22)])], 2)


def test_a_hang_says_where_ranks_part() -> None:
    ranks = [stuck(0, [one(1), one(2, finished=False)]), stuck(1, [one(1), one(2, "barrier", finished=False)])]
    assert explain(ranks, 2).startswith("the ranks differ at collective 2; rank 0 issued all_reduce 8 of Float in")


def test_a_hang_groups_ranks_that_do_the_same_and_names_those_that_are_silent() -> None:
    ranks = [stuck(rank, [one(5, finished=False)]) for rank in (2, 0)] + [stuck(3, [])]
    assert explain(ranks, 6) == (
        "ranks 0, 2 wait at collective 5, all_reduce 8 of Float in forward (model/policy.py:1);"
        " rank 3 is in forward (toy/toy.py:5), before any collective;"
        " ranks 1, 4, 5 did not answer: stopped, or busy in native code"
    )


TORCH = str(Path(torch.__file__).parent)
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
            Frame("backward", accelerate.accelerator.__file__, 2),
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


# --- collectives: for which modules ----------------------------------------------------------------------------------


def used(*names: str, step: int = 0, purpose: Purpose = "forward") -> tuple[Use, ...]:
    return tuple(Use(step=step, purpose=purpose, name=name) for name in names)


def judged_by_name(
    *ranks: tuple[Use, ...], ended: Oom | None = None, made: Sequence[Collective] = (one(1),)
) -> collectives.CollectivesVerdict:
    issued = [Issued(rank=rank, collectives=tuple(made), uses=uses) for rank, uses in enumerate(ranks)]
    return collectives.judge(issued, len(ranks), ended)


def test_equal_collectives_for_different_modules_are_different() -> None:
    same = used("a", "b")
    assert judged_by_name(same, same).says == "all 2 ranks issue the same 1 collectives, for the same modules"
    verdict = judged_by_name(same + used("c", step=1), same + used("c", step=1), same + used("d", step=1))
    assert verdict.word == "DIFFERENT"
    assert verdict.says.endswith("in step 1; ranks 0, 1 gather c for its forward; rank 2 gathers d for its forward")


def test_a_rank_that_only_stopped_early_used_nothing_else() -> None:
    assert judged_by_name(used("a", "b"), used("a"), ended=OOM).word == "NOT SEEN"
    assert judged_by_name(used("a", "b"), used("a", "c"), ended=OOM).word == "DIFFERENT"
    missing = judged_by_name(used("a"), used("a", "b", purpose="gradient"))
    assert missing.word == "DIFFERENT"


def test_modules_are_told_beside_collectives_that_differ() -> None:
    issued = [
        Issued(rank=0, collectives=(one(1),), uses=used("a")),
        Issued(rank=1, collectives=(one(1, shape=(9,)),), uses=used("b")),
    ]
    says = collectives.judge(issued, 2, None).says
    assert says.startswith("ranks issue different collectives: the ranks differ at collective 1; rank 0 issued")
    assert says.endswith("in step 0; rank 0 gathers a for its forward; rank 1 gathers b for its forward")
