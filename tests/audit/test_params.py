"""`bench audit params`: the verdict on parameters without a gradient."""

import pytest

from bench.audit import params
from bench.audit.params import Looked, Parameter
from bench.backends import Family
from bench.cli import audit_tables as audits
from bench.records.outcome import Oom

OOM = Oom(rank=0, phase="audit", reason="CUDA out of memory")


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
        (0, "ddp", False, True, "every parameter in 4 batches: find_unused_parameters can stay off"),
        (0, "ddp", True, True, "find_unused_parameters can be turned off, which saves a search"),
        (4, "ddp", False, False, "; DDP will fail or hang"),
        (1, "ddp", False, False, "in some of 4 batches: DDP will fail or hang"),
        (1, "ddp", True, True, "find_unused_parameters must stay on"),
        (4, "fsdp", False, True, "; they are not trained, and ddp needs find_unused_parameters on"),
        (
            1,
            "deepspeed",
            False,
            True,
            "ranks with different samples may issue different collectives (check with bench audit collectives)",
        ),
        (4, "single", False, True, "50.0 % of the trained parameters get no gradient"),
    ],
)
def test_unused_parameters_fail_where_ddp_does_not_look_for_them(
    unused: int, family: Family, find: bool, good: bool, says: str
) -> None:
    seen = looked(parameter("body.weight"), parameter("head.weight", unused=unused))
    verdict = params.judge(seen, of_ddp=family == "ddp", find_unused=find, allow_unused=True, ended=None)
    assert verdict.good == good
    assert says in verdict.says


@pytest.mark.parametrize(
    ("others", "unused", "allowed", "good"),
    [(8, 4, False, False), (8, 4, True, True), (9, 4, False, True), (1, 2, False, True)],
)
def test_a_model_of_which_more_than_a_tenth_is_never_trained_is_not_good(
    others: int, unused: int, allowed: bool, good: bool
) -> None:
    seen = looked(*(parameter(f"body.{n}") for n in range(others)), parameter("head", unused=unused))
    seen = seen.model_copy(update={"dropped_keys": {"pixel_values": "float32"}})
    verdict = params.judge(seen, of_ddp=False, find_unused=False, allow_unused=allowed, ended=None)
    assert verdict.good == good
    assert ("rows of this cell are invalid" in verdict.says) == (not good)
    assert "forward takes no pixel_values, which the samples hold" in verdict.says


def test_parameters_without_elements_are_no_share() -> None:
    seen = looked(parameter("empty", unused=4).model_copy(update={"elements": 0}))
    assert params.judge(seen, of_ddp=False, find_unused=False, allow_unused=False, ended=None).good


def test_a_look_that_did_not_end_is_no_verdict() -> None:
    for seen, ended in ((None, None), (None, OOM), (looked(parameter("weight")), OOM)):
        verdict = params.judge(seen, of_ddp=False, find_unused=False, allow_unused=False, ended=ended)
        assert not verdict.good
        assert "did not finish" in verdict.says
        assert verdict.groups == ()


def test_gradients_of_zero_are_listed_when_asked_for() -> None:
    seen = looked(parameter("a", frozen=True), parameter("b.x", zero=4), parameter("b.y", zero=4), parameter("c"))
    verdict = params.judge(seen, of_ddp=True, find_unused=False, allow_unused=False, ended=None)
    assert verdict.good
    assert "backward reaches every trained parameter in 4 batches" in verdict.says
    asked, not_asked = (audits.params("ddp", verdict, zero_grad=zero_grad) for zero_grad in (True, False))
    assert [row[:4] for row in asked.rows] == [("ZERO-GRAD", "b.*", "2", "20"), ("FROZEN", "a", "1", "10")]
    assert [row[0] for row in not_asked.rows] == ["FROZEN"]
    assert "The gradient of 2 more tensors is zero everywhere: --zero-grad lists them." in not_asked.notes
