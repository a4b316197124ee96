"""What a plan tells `bench run --best`, with a model that is really traced."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.cli import best, selection
from bench.cli.progress import Progress
from bench.machine import detect, record
from bench.records.calibration import Calibration, Rates
from bench.store import calibrations
from bench.sweep import session
from bench.sweep.best import Planned, Setting

MATRIX = """
workload: {name: pi07, preset: tiny, n_layers: 2, vision_layers: 2, num_cams: 1}
matrix: {backend: [ddp, fsdp2], batch: [1, 4096]}
"""


def planned(folder: Path, *overrides: str) -> dict[Setting, Planned]:
    (folder / "m.yaml").write_text(MATRIX)
    matrix, plans, hardware, _ = selection.read(folder / "m.yaml", overrides)
    with session.opened(matrix, plans, hardware, folder / "run", Progress(Console(file=io.StringIO()))) as sweep:
        return dict(best.planned(sweep, matrix))


def test_a_memory_limit_rules_out_what_cannot_fit_and_rates_bound_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_STATE", str(tmp_path / "state"))
    assert planned(tmp_path) == {}, "without a limit and without rates, a plan is not worth the tracing"
    limited = planned(tmp_path, "launch.memory_limit=300MiB")
    assert sorted((batch, says.fits, says.at_most) for (_, batch), says in limited.items()) == [
        (1, True, None),
        (1, True, None),
        (4096, False, None),
        (4096, False, None),
    ]
    rates = Rates(bf16_flops_per_s=1e9, fp32_flops_per_s=1e9, bandwidth_bytes_per_s=1e9, link_bytes_per_s=1e9, trials=1)
    here = record(detect())
    learnt = Calibration(machine=here, measured_at="2026-01-01", cells=1, launches=2, sd=0.02, degrees=1, rates=rates)
    calibrations.save(learnt, tmp_path / "state")
    bounded = planned(tmp_path, "launch.memory_limit=300MiB")
    assert all(says.at_most and says.expected == says.at_most for says in bounded.values())
