"""Cells that several processes share: each has one owner, and those of an owner that ended are free again."""

import multiprocessing
from pathlib import Path

import pytest

from bench.store import claims as claims_module
from bench.store.claims import Claims, ever_owned_by, owner_of


def test_a_cell_belongs_to_who_came_first(tmp_path: Path) -> None:
    one, two = (Claims(tmp_path, owner, lambda _: False) for owner in ("1", "2"))
    assert one.take("ddp-a")
    assert not two.take("ddp-a")
    assert two.take("ddp-b")
    assert one.take("ddp-a")
    assert ever_owned_by(tmp_path, "1") == ["ddp-a"]


def test_what_an_owner_leaves_is_free(tmp_path: Path) -> None:
    assert Claims(tmp_path, "1", lambda _: False).take("ddp-a")
    assert Claims(tmp_path, "2", lambda owner: owner == "1").take("ddp-a")
    lost = Claims(tmp_path, "1", lambda owner: owner == "1")
    assert not lost.take("ddp-a")
    assert not lost.holds("ddp-a")
    assert owner_of(tmp_path, "ddp-a") == "2"
    assert ever_owned_by(tmp_path, "1") == ever_owned_by(tmp_path, "2") == ["ddp-a"]


def test_who_sees_a_claim_late_does_not_get_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where a node may remember for a while that there is no such file."""
    assert Claims(tmp_path, "1", lambda _: False).take("ddp-a")
    monkeypatch.setattr(claims_module.spool, "content", lambda _: None)
    assert not Claims(tmp_path, "2", lambda _: True).take("ddp-a")
    monkeypatch.undo()
    assert owner_of(tmp_path, "ddp-a") == "1"
    assert [file.name for file in (tmp_path / "claims").iterdir()] == ["ddp-a.0"]


def _takes(root: Path, owner: str) -> list[str]:
    claims = Claims(root, owner, lambda other: other == "dead")
    return [cell for cell in map(str, range(200)) if claims.take(cell)]


@pytest.mark.parametrize("dead", [False, True])
def test_many_at_a_time_never_share_a_cell(tmp_path: Path, dead: bool) -> None:
    if dead:
        assert all(Claims(tmp_path, "dead", lambda _: False).take(cell) for cell in map(str, range(200)))
    with multiprocessing.get_context("fork").Pool(4) as pool:
        taken = pool.starmap(_takes, [(tmp_path, owner) for owner in "abcd"])
        pool.close()  # terminate, which follows, would wait for a worker that handles SIGTERM as another test set it
        pool.join()
    assert sorted(cell for one in taken for cell in one) == sorted(map(str, range(200)))
