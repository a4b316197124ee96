"""Programs that stay for the next plan."""

import os
from pathlib import Path

import pytest
from examples import cell

from bench import backends
from bench.records.cell import Measure, Train
from bench.records.program import Moment, Parameter, Program
from bench.store import programs

ONE = Program(
    device="cpu",
    batches=(2, 4),
    parameters=(Parameter(elements=3, unit=None, trained=True),),
    weights_bytes=2,
    buffers_bytes=0,
    units=0,
    moments=(Moment(event="forward_end", index=None, peak_bytes=(1, 2), live_bytes=(1, 2)),),
    input_bytes=1,
    flops={},
    moved_bytes=(1, 2),
    operators=1,
    seconds=0.0,
)


def key(backend: str = "ddp", sources: str = "a", torch: str = "2.13", **changes: object) -> str:
    one = cell(backend, **changes)
    given = ("cpu", (2, 4), {"x.py": sources}, {"torch": torch})
    return programs.request_of(one, *given, autocasts=backends.autocasts(one)).key


def test_backends_share_a_program_and_whatever_decides_it_does_not() -> None:
    assert key("ddp", train=Train(weights="bf16")) == key("fsdp2", num_processes=8) != key("ddp")
    in_fp16 = {name: key(name, mixed_precision="fp16") for name in ("ddp", "single", "fsdp2", "zero2")}
    assert in_fp16["ddp"] == in_fp16["single"] != in_fp16["fsdp2"] == in_fp16["zero2"]
    others = [key(sources="b"), key(torch="2.14"), key(options={"preset": "small"}), key(mixed_precision="no")]
    others.append(key(measure=Measure(warmup_steps=1, steps=3, phase_steps=2, seed=7)))
    assert len({key(), *others}) == 6


def test_the_kernel_of_attention_decides() -> None:
    first, other = (programs.request_of(cell(), "cuda", (2, 4), {}, {}, cudnn=cudnn) for cudnn in (True, False))
    assert first.key != other.key
    assert (first.cudnn, other.cudnn) == (True, False)


def test_a_program_is_found_again_and_a_torn_one_is_not(tmp_path: Path) -> None:
    assert programs.find(tmp_path, "k") is None
    programs.keep(tmp_path, "k", ONE)
    assert programs.find(tmp_path, "k") == ONE
    (tmp_path / "programs" / "k.json").write_text("{")
    assert programs.find(tmp_path, "k") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_time() -> None:
    programs.keep(Path(os.devnull), "k", ONE)
    assert programs.find(Path(os.devnull), "k") is None


def test_the_oldest_programs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "KEPT", 2)
    for number in range(4):
        programs.keep(tmp_path, str(number), ONE)
        os.utime(tmp_path / "programs" / f"{number}.json", (number, number))
    assert {file.stem for file in (tmp_path / "programs").iterdir()} == {"2", "3"}
