"""One global batch, reached by micro-batches: a search among divisors names what the full grid shows to be fastest."""

from dataclasses import dataclass

import pytest
from harness import Bench
from peaked import FASTEST

from bench.cli.collect import collect
from bench.report.rows import Row
from bench.store.run_folder import Store

GLOBAL = 32
"""Of two ranks: 16 samples of each in a step."""
DIVISORS = [1, 2, 4, 8, 16]


@dataclass(frozen=True)
class Answer:
    """What a run recommends."""

    row: Row
    attempts: int
    output: str

    @property
    def of(self) -> tuple[object, int, int]:
        return self.row.settings["grad_ckpt"], self.row.batch_per_rank, self.row.micro_batches


def answer(bench: Bench, name: str, batch: object) -> Answer:
    matrix = bench.matrix(
        name,
        workload={"name": "peaked:Peaked"},
        matrix={
            "backend": ["ddp", "fsdp", "zero2"],
            "grad_ckpt": [False, True],
            "global_batch": GLOBAL,
            "batch": batch,
        },
        launch={"num_processes": 2, "mixed_precision": "no"},
        measure={"warmup_steps": 1, "steps": 3, "phase_steps": 0},
    )
    output = bench("run", matrix, "--out", str(bench.folder / name))
    (advice,) = collect([Store(bench.folder / name)], claims=[]).advice
    assert advice.chosen is not None
    launched = [result for result in bench.results(name) if result.outcome.kind != "skipped"]
    return Answer(advice.chosen, len(launched), output)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_search_among_divisors_gives_the_answer_of_the_full_grid(bench: Bench) -> None:
    """Backends differ by less than the noise of a busy machine, so either may be named."""
    searched, grid = answer(bench, "searched", "probe"), answer(bench, "grid", DIVISORS)
    print(f"searched: {searched.attempts} attempts, {searched.row.settings['backend']}, {searched.of}")
    print(f"grid: {grid.attempts} attempts, {grid.row.settings['backend']}, {grid.of}")
    assert searched.of == grid.of == (False, FASTEST, 4)
    assert {searched.row.batch_global, grid.row.batch_global} == {GLOBAL}
    assert searched.row.rate == pytest.approx(grid.row.rate, rel=0.25)
    assert f"At a global batch of {GLOBAL} on 2 ranks: " in searched.output
    assert f"micro-batch {FASTEST}, accumulate 4: " in searched.output
    for probe in Store(bench.folder / "searched").probes():
        assert (probe.found.certificate, probe.found.max_batch_per_rank) == ("cap_fits", DIVISORS[-1])
