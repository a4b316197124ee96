"""The filters --backend, --select and --exclude."""

import pytest
from toy_matrices import CPU, matrix_of, plans_of

from bench.errors import InputError
from bench.matrix import expand
from bench.matrix.select import narrow, options


def test_a_backend_picks_cells_that_an_include_adds_too() -> None:
    matrix = matrix_of(matrix={"backend": ["ddp", "fsdp"], "batch": [1]}, include=[{"backend": "zero2"}])
    assert [plan.cell.backend for plan in narrow(expand(matrix, CPU), backend="ddp")] == ["ddp"]
    assert [plan.cell.backend for plan in narrow(expand(matrix, CPU), backend="zero2,fsdp")] == ["fsdp", "zero2"]
    with pytest.raises(InputError, match="backend is never 'zero3'") as told:
        narrow(expand(matrix, CPU), backend="zero3")
    assert told.value.where == "--backend zero3"
    assert "to measure it anyway: --axis backend=zero3" in str(told.value)
    with pytest.raises(InputError, match=r"did you mean .*fsdp"):
        narrow(expand(matrix, CPU), backend="fsdpp")


def test_select_and_exclude_narrow_cells_and_batches() -> None:
    matrix = matrix_of(matrix={"backend": ["ddp", "fsdp"], "num_cams": [1, 4], "batch": [1, 2]})
    plans = narrow(expand(matrix, CPU), select=["backend=fsdp", "batch=2"], exclude=["backend=fsdp num_cams=4"])
    assert [(p.cell.backend, p.axes["num_cams"], p.batches) for p in plans] == [("fsdp", 1, (2,))]


def test_a_value_may_hold_spaces() -> None:
    plans = [
        plan.model_copy(update={"axes": {**plan.axes, "mode": "c" if plan.axes["grad_ckpt"] else "a b"}})
        for plan in plans_of(
            matrix={"backend": ["ddp"], "grad_ckpt": [False, True], "num_cams": [1, 4], "batch": [1]},
        )
    ]

    def left(**filters: list[str]) -> list[tuple[object, object]]:
        return [(plan.axes["mode"], plan.axes["num_cams"]) for plan in narrow(plans, **filters)]

    assert left(exclude=["mode=a b"]) == left(exclude=['mode="a b"']) == left(select=["mode=c"])
    assert left(exclude=["mode='a b' num_cams=1"]) == [("a b", 4), ("c", 1), ("c", 4)]
    assert left(select=["mode=a b"]) == [("a b", 1), ("a b", 4)]


@pytest.mark.parametrize(
    ("select", "exclude", "written"),
    [
        ([], [], []),
        (["batch=2"], [], ["--select", "batch=2"]),
        (["backend=fsdp", "batch=2"], [], ["--select", "backend=fsdp", "--select", "batch=2"]),
        ([], ["backend=ddp num_cams=4"], ["--exclude", "backend=ddp num_cams=4"]),
        ([], ["backend=ddp num_cams=4 batch=1"], ["--exclude", "backend=ddp num_cams=4 batch=1"]),
        (["batch=2"], ["num_cams=1 backend=ddp"], ["--select", "batch=2", "--exclude", "backend=ddp num_cams=1"]),
    ],
)
def test_what_was_kept_can_be_selected_again(select: list[str], exclude: list[str], written: list[str]) -> None:
    every = plans_of(matrix={"backend": ["ddp", "fsdp", "zero2"], "num_cams": [1, 4], "batch": [1, 2]})
    assert options(every, narrow(every, select=select, exclude=exclude)) == written
