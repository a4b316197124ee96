"""What a rank holds of each parameter."""

import pytest

from bench.backends import BACKENDS, bytes_per_parameter


@pytest.mark.parametrize(
    ("backend", "ranks", "held"),
    [
        ("single", 1, 20),
        ("ddp", 8, 22),
        ("ddp", 1, 20),
        ("fsdp", 8, 2),
        ("fsdp2", 8, 2),
        ("fsdp_grad_op", 8, 4),
        ("zero1", 8, 6),
        ("zero2", 8, 4.25),
        ("zero3", 8, 2.5),
    ],
)
def test_sharded_state_is_divided_by_the_ranks(backend: str, ranks: int, held: float) -> None:
    assert bytes_per_parameter(BACKENDS[backend], ranks) == held


def test_foreach_copies_the_masters() -> None:
    assert bytes_per_parameter(BACKENDS["ddp"], 8, foreach=True) == 26


@pytest.mark.parametrize(("backend", "ranks", "held"), [("single", 1, 16), ("ddp", 8, 20), ("ddp", 1, 16)])
def test_fp32_weights_are_their_own_masters(backend: str, ranks: int, held: float) -> None:
    assert bytes_per_parameter(BACKENDS[backend], ranks, fp32_weights=True) == held


def test_weights_that_stay_gathered_count_whole() -> None:
    assert bytes_per_parameter(BACKENDS["fsdp2"], 8, keeps_whole=True) == 4


@pytest.mark.parametrize(("backend", "replicas", "held"), [("fsdp2", 4, 8), ("fsdp2", 16, 16), ("zero3", 4, 2.5)])
def test_only_fsdp_shards_among_fewer_ranks_where_it_is_replicated(backend: str, replicas: int, held: float) -> None:
    assert bytes_per_parameter(BACKENDS[backend], 8, replicas=replicas) == held
