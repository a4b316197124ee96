"""Decides which optional parts are computed for a batch: see `Pi07Config.branch_sync`."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from bench.model.config import BranchSync

FIELDS: Mapping[str, str] = {
    "history": "frame_is_real",
    "response": "response_is_real",
    "metadata": "metadata_is_real",
    "subgoal": "subgoal_is_real",
}
"""The optional parts, and the batch field that says which samples have each."""


class BranchMismatch(RuntimeError):
    """A field is in the batches of some ranks but not of others."""


def decide(sync: BranchSync, batch: Mapping[str, Tensor]) -> dict[str, bool]:
    """Whether each part of `FIELDS` is computed.

    With ``agree``, all ranks get the same answer. The other modes issue no collective.

    Raises:
        BranchMismatch: with ``agree``, naming the fields and the ranks.
    """
    if sync == "hoist":
        return {part: field in batch for part, field in FIELDS.items()}
    device = batch["prompt_ids"].device
    present_F = torch.tensor([field in batch for field in FIELDS.values()], device=device)
    any_F = torch.stack([_any(part, batch.get(field), device) for part, field in FIELDS.items()])
    if sync == "none" or not dist.is_initialized():
        return dict(zip(FIELDS, any_F.tolist(), strict=True))
    # Each rank fills its own row, so that the sum shows which ranks lack a field.
    table_R2F = torch.zeros(dist.get_world_size(), 2, len(FIELDS), dtype=torch.int32, device=device)
    table_R2F[dist.get_rank()] = torch.stack((present_F, any_F))
    dist.all_reduce(table_R2F)
    return _agree(table_R2F[:, 0].tolist(), table_R2F[:, 1].tolist())


def _agree(present_RF: list[list[int]], any_RF: list[list[int]]) -> dict[str, bool]:
    problems = []
    for column, field in enumerate(FIELDS.values()):
        present = [rank for rank, row in enumerate(present_RF) if row[column]]
        absent = [rank for rank, row in enumerate(present_RF) if not row[column]]
        if present and absent:
            problems.append(f"{field!r} is in the batches of {_in_words(present)} but not of {_in_words(absent)}")
    if problems:
        raise BranchMismatch("; ".join(problems))
    return {part: any(row[column] for row in any_RF) for column, part in enumerate(FIELDS)}


def _any(part: str, field_BX: Tensor | None, device: torch.device) -> Tensor:
    if field_BX is None:
        return torch.zeros((), dtype=torch.bool, device=device)
    if part == "history":
        field_BX = field_BX[:, :-1]  # the current frame is always present
    return field_BX.any()


def _in_words(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
