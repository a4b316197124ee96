"""`bench run --best` on real ranks: an answer without the whole matrix, and the rest of it later."""

from pathlib import Path

from harness import reading
from kept import KeptBench

from bench.store.run_folder import Store


def test_the_fastest_setting_is_named_and_the_rest_can_be_measured_later(tmp_path: Path) -> None:
    bench, folder = KeptBench(tmp_path), tmp_path / "run"
    matrix = bench.matrix(
        workload={"name": "toy:Toy"},
        matrix={"backend": ["ddp", "fsdp"], "sleep_s": [0.3, 0.02, 0.15, 0.45, 0.6, 0.75, 0.9, 1.2], "batch": 2},
        choices=["backend", "sleep_s"],
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0},
    )
    output = bench("run", matrix, "--best", "--settle", "20%", "--out", str(folder))
    best = Store(folder).best()
    [answer] = best.answers
    assert "sleep_s=0.02" in answer.name
    assert (best.ended is not None, best.of, answer.settings) == (True, 16, 16)
    assert sum(answer.ruled_out.values()) == 15
    assert answer.ruled_out.get("others", 0) >= 1
    assert "o setting of 16 can be more than " in output
    said = reading("report", str(folder))
    assert "o setting of 16 can be more than " in said
    assert "missing" not in said
    before = {result.attempt.slug for result in Store(folder).results()}
    bench("run", matrix, "--out", str(folder))
    results = Store(folder).results()
    full = {result.attempt.slug for result in results if not result.attempt.short and result.attempt.launch == 1}
    assert len(full) == 16
    assert before <= {result.attempt.slug for result in results}
    assert Store(folder).best() is None
    assert "can be more than" not in reading("report", str(folder))
