"""A user's accelerate configs and DeepSpeed JSON, on the bundled policy."""

from pathlib import Path

from harness import Bench
from kept import KeptBench
from policy import is_checkpointed

from bench.records.outcome import Skipped
from bench.store.run_folder import Store

BENCH = KeptBench


def test_own_configs_run_and_their_regime_is_observed(policy_run: Path) -> None:
    results = {r.axes["backend"]: r.outcome for r in Store(policy_run).results() if not is_checkpointed(r)}
    names = ("my_fsdp", "fsdp_grad_op", "my_zero", "zero2")
    my_fsdp, fsdp, my_zero, zero = (results[name].ranks[0] for name in names)  # type: ignore[union-attr]
    assert my_fsdp.regime == fsdp.regime
    assert my_zero.regime == zero.regime
    assert my_zero.losses == zero.losses


def test_a_config_of_one_process_runs_beside_others_and_one_that_cannot_run_is_skipped(bench: Bench) -> None:
    """As `accelerate config` writes them by default."""
    (bench.folder / "no.yaml").write_text("distributed_type: 'NO'\nmixed_precision: 'no'\nnum_processes: 1\n")
    (bench.folder / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n")
    files = {"alone": "no.yaml", "sharded": "fsdp.yaml"}
    own = [{"name": name, "config_file": file} for name, file in files.items()]
    bench("run", bench.matrix(matrix={"backend": own, "batch": 1}), "--out", str(bench.folder / "run"))
    alone, skipped = (result.outcome for result in bench.results())
    assert [rank.regime.world_size for rank in alone.ranks] == [1]
    assert isinstance(skipped, Skipped)
    assert "fsdp_cpu_ram_efficient_loading: false" in skipped.reason
