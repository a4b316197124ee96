"""Optional parts: the same loss whoever decides, and a decision that all ranks share."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils.data import default_collate

from bench.model.branches import FIELDS, BranchMismatch, decide
from bench.model.config import Pi07Config
from bench.model.data import Samples
from bench.model.policy import Pi07Policy
from bench.model.workload import Pi07

FULL = {"response_len": 8, "metadata_len": 8, "subgoal": True, "n_obs_history": 3}


def batch_of(config: Pi07Config, *indices: int) -> dict[str, Tensor]:
    samples = Samples(config, seed=1000)
    collated: dict[str, Tensor] = default_collate([samples[index] for index in indices])
    return collated


def build(config: Pi07Config) -> Pi07Policy:
    torch.manual_seed(0)
    policy = Pi07(config).build()
    assert isinstance(policy, Pi07Policy)
    return policy


def without(part: str, config: Pi07Config) -> int:
    """A sample that lacks the part."""
    samples = Samples(config, seed=1000)
    for index in range(1000):
        field = samples[index][FIELDS[part]]
        if not (field[:-1] if part == "history" else field).any():
            return index
    raise AssertionError(part)


@pytest.mark.parametrize("part", list(FIELDS))
def test_a_part_that_is_left_out_is_a_part_that_is_masked(part: str) -> None:
    hoist, alone = (Pi07Config(branch_sync=sync, **FULL) for sync in ("hoist", "none"))
    batch = batch_of(hoist, without(part, hoist))
    assert decide("hoist", batch)[part]
    assert not decide("none", batch)[part]
    masked, left_out = build(hoist)(batch), build(alone)(batch)
    for name, value in masked.items():
        torch.testing.assert_close(left_out[name], value, rtol=1e-5, atol=1e-5)


def test_work_depends_on_the_samples_unless_it_is_hoisted() -> None:
    for sync, same in (("hoist", True), ("none", False)):
        config = Pi07Config(branch_sync=sync, **FULL)  # type: ignore[arg-type]
        policy, lengths = build(config), set()
        for index in range(12):
            lengths.add(policy._embed_prefix(batch_of(config, index), training=True).x_BSD.shape[1])
        assert (len(lengths) == 1) == same


def test_every_optional_part_changes_the_loss() -> None:
    config = Pi07Config(branch_sync="hoist", **FULL, drop_response=0, drop_metadata=0, drop_subgoal=0, drop_history=0)
    policy, batch = build(config), batch_of(config, 0)
    whole = policy(batch)["loss"]
    for part, field in FIELDS.items():
        keep = torch.zeros_like(batch[field])
        if part == "history":
            keep[:, -1] = True
        assert not torch.equal(policy({**batch, field: keep})["loss"], whole), part


def test_a_response_may_be_predicted() -> None:
    told, asked = (Pi07Config(**FULL, predict_response=predict) for predict in (False, True))
    batch = batch_of(told, 0, 1)
    assert not torch.equal(build(told)(batch)["ce"], build(asked)(batch)["ce"])
    absent = batch_of(asked, without("response", asked))
    assert torch.isfinite(build(asked)(absent)["ce"])


def test_drops_come_at_their_rates() -> None:
    config = Pi07Config(**FULL)
    batch = batch_of(config, *range(600))
    subgoal, response, metadata = (batch[FIELDS[part]] for part in ("subgoal", "response", "metadata"))
    shares = {
        "history": 1 - batch["frame_is_real"][:, 0].float().mean(),
        "subgoal": 1 - subgoal.any(1).float().mean(),
        "response": 1 - response.any(1).float().mean(),
        "metadata": 1 - metadata.any(1).float().mean(),
        "field": 1 - metadata[metadata.any(1)].float().mean(),
    }
    published = {"history": 0.3, "subgoal": 0.75, "response": 0.3, "metadata": 0.15, "field": 0.05}
    for part, share in published.items():
        deviation = (share * (1 - share) / 600) ** 0.5
        assert abs(shares[part] - share) < 4 * deviation, part


def _rank(rank: int, port_file: str, out: str) -> None:
    """Decide once with all fields, and once while rank 1 lacks one."""
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=2)
    config = Pi07Config(branch_sync="agree", **FULL)
    batch = batch_of(config, without("subgoal", config) if rank == 0 else 0)
    batch["subgoal_is_real"] = torch.full_like(batch["subgoal_is_real"], rank == 1)
    decided = str(decide("agree", batch))
    if rank == 1:
        del batch["response_is_real"]
    try:
        said = str(decide("agree", batch))
    except BranchMismatch as error:
        said = str(error)
    Path(out, str(rank)).write_text(json.dumps([decided, said]))
    dist.destroy_process_group()


def test_ranks_agree_or_name_the_field_and_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # ranks import this module
    mp.spawn(_rank, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1))
    assert first == second
    decided, said = first
    assert "'subgoal': True" in decided  # rank 0 has none, but rank 1 does
    assert said == "'response_is_real' is in the batches of rank 0 but not of rank 1"
