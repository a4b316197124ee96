"""Cells that several processes share: each has one owner, and those of an owner that ended are free again."""

import multiprocessing
from pathlib import Path

from bench.store.claims import Claims, owned_by


def test_a_cell_belongs_to_who_came_first(tmp_path: Path) -> None:
    one, two = (Claims(tmp_path, owner, lambda _: False) for owner in ("1", "2"))
    assert one.take("ddp-a")
    assert not two.take("ddp-a")
    assert two.take("ddp-b")
    assert one.take("ddp-a")
    assert owned_by(tmp_path, "1") == ["ddp-a"]


def test_what_an_owner_leaves_is_free(tmp_path: Path) -> None:
    assert Claims(tmp_path, "1", lambda _: False).take("ddp-a")
    assert Claims(tmp_path, "2", lambda owner: owner == "1").take("ddp-a")
    assert not Claims(tmp_path, "1", lambda owner: owner == "1").take("ddp-a")


def _takes(root: Path, owner: str) -> list[str]:
    claims = Claims(root, owner, lambda _: False)
    return [cell for cell in map(str, range(200)) if claims.take(cell)]


def test_many_at_a_time_never_share_a_cell(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        taken = pool.starmap(_takes, [(tmp_path, owner) for owner in "abcd"])
    assert sorted(cell for one in taken for cell in one) == sorted(map(str, range(200)))
