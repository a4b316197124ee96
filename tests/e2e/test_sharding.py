"""Options of sharding, and ZeRO-3 with gradient checkpointing, on real ranks."""

import json
from typing import Any

import pytest
import yaml
from harness import Bench
from kept import KeptBench
from policy import SMALL

from bench.records.outcome import Ok
from bench.records.rank_outcome import RankOk

ENGINE = {
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        # Free all weights at once, as ZeRO-3 does with a large model: by default it keeps those of a small one.
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_max_live_parameters": 0,
        "stage3_prefetch_bucket_size": 0,
    },
    "gradient_clipping": 1.0,
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
}
POLICY = {"name": "pi07", "preset": "tiny", **SMALL}
FREES = {"name": "frees_all", "config_file": "frees_all.yaml"}
OPTIONS: list[dict[str, Any]] = [
    {"backend": "fsdp2"},
    {"backend": "fsdp2", "reshard_after_forward": False},
    {"backend": "fsdp2", "dp_replicate_size": 2},
    {"backend": "fsdp2", "offload": "params"},
    {"backend": "zero1", "zero_overlap_comm": True},
    {"backend": "zero2", "zero_overlap_comm": True},
    {"backend": "zero3", "zero_overlap_comm": False},
]
RECOMPUTED = [
    {"backend": FREES, "grad_ckpt": grad_ckpt, "freeze_backbone": frozen}
    for grad_ckpt in (False, True)
    for frozen in (False, True)
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[RankOk]:
    """Rank 0 of each of `OPTIONS`, then of each of `RECOMPUTED`."""
    bench = KeptBench(tmp_path_factory.mktemp("sharding"))
    (bench.folder / "frees_all.yaml").write_text(
        yaml.safe_dump({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}})
    )
    (bench.folder / "ds.json").write_text(json.dumps(ENGINE))
    outcomes = []
    for name, workload, cells in (("toy", {"name": "toy:Toy"}, OPTIONS), ("policy", POLICY, RECOMPUTED)):
        include = [{**cell, "batch": 2} for cell in cells]
        bench("run", bench.matrix(workload=workload, matrix={}, include=include), "--out", str(bench.folder / name))
        outcomes += [result.outcome for result in bench.results(name)]
    assert len(outcomes) == len(OPTIONS + RECOMPUTED)
    assert all(isinstance(outcome, Ok) for outcome in outcomes), outcomes
    return [outcome.ranks[0] for outcome in outcomes if isinstance(outcome, Ok)]


def test_options_are_observed_and_change_no_result(ranks: list[RankOk]) -> None:
    plain, kept, hybrid, offloaded, *zero = (rank.regime for rank in ranks[: len(OPTIONS)])
    assert (plain.mesh, plain.reshard_after_forward, plain.offload) == ({"pp": 1, "dp": 2, "tp": 1}, True, "none")
    assert kept == plain.model_copy(update={"reshard_after_forward": False})
    assert offloaded == plain.model_copy(update={"offload": "params"})
    assert hybrid.mesh == {"pp": 1, "dp_replicate": 2, "dp_shard": 1, "tp": 1}
    assert hybrid.sharded_parameters == 0 < plain.sharded_parameters
    assert [regime.overlap_comm for regime in zero] == [True, True, False]
    for rank in ranks[: len(OPTIONS)]:
        assert rank.warmup_losses == pytest.approx(ranks[0].warmup_losses, rel=1e-3)
        assert rank.losses == pytest.approx(ranks[0].losses, rel=0.02)


def test_fewer_gathers_and_an_all_reduce_between_groups_show_in_the_traffic(ranks: list[RankOk]) -> None:
    def calls(rank: RankOk, operation: str) -> int:
        return sum(one.calls for one in rank.traffic or () if one.operation == operation and one.group_size == 2)

    plain, kept, hybrid = ranks[:3]
    assert calls(kept, "all_gather") < calls(plain, "all_gather")
    assert calls(hybrid, "all_gather") < calls(kept, "all_gather")


def test_zero3_recomputes_what_it_has_freed(ranks: list[RankOk]) -> None:
    whole, frozen, whole_again, frozen_again = (rank.losses for rank in ranks[len(OPTIONS) :])
    assert whole_again == whole
    assert frozen_again == frozen
    assert frozen != whole


@pytest.mark.long
def test_zero3_has_the_losses_that_it_has_without_keeping_small_weights(bench: Bench, ranks: list[RankOk]) -> None:
    include = [{**cell, "backend": "zero3", "batch": 2} for cell in RECOMPUTED]
    bench("run", bench.matrix(workload=POLICY, matrix={}, include=include), "--out", str(bench.folder / "run"))
    plain = [result.outcome.ranks[0].losses for result in bench.results()]  # type: ignore[union-attr]
    assert plain == [rank.losses for rank in ranks[len(OPTIONS) :]]


@pytest.mark.long
def test_groups_of_two_on_four_ranks(bench: Bench) -> None:
    cells = [{}, {"reshard_after_forward": 2}, {"dp_replicate_size": 2}]
    include = [{"backend": "fsdp2", "batch": 2, **cell} for cell in cells] + [{"backend": "ddp", "batch": 2}]
    bench("run", bench.matrix(include=include, launch={"num_processes": 4}), "--out", str(bench.folder / "run"))
    plain, grouped, hybrid, ddp = (result.outcome.ranks[0] for result in bench.results())  # type: ignore[union-attr]
    assert grouped.regime == plain.regime.model_copy(update={"reshard_after_forward": 2})
    assert hybrid.regime.mesh == {"pp": 1, "dp_replicate": 2, "dp_shard": 2, "tp": 1}
    assert grouped.losses == hybrid.losses == plain.losses == pytest.approx(ddp.losses, rel=0.02)


@pytest.mark.long
def test_zero_offload(bench: Bench) -> None:
    """Compiles DeepSpeed's CPU Adam, if nothing did it before."""
    cells = [("zero1", "optimizer"), ("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "params")]
    include = [{"backend": backend, "offload": offload, "batch": 2} for backend, offload in [("zero2", "none"), *cells]]
    bench("run", bench.matrix(include=include), "--out", str(bench.folder / "run"))
    plain, *others = (result.outcome.ranks[0] for result in bench.results())  # type: ignore[union-attr]
    assert [rank.regime.offload for rank in others] == [offload for _, offload in cells]
    assert [rank.losses for rank in others] == [pytest.approx(plain.losses, rel=0.02)] * len(cells)
