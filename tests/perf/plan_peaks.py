"""`make perf-plan`: is `bench plan` right about memory? Every backend, on two CPU ranks (about half an hour).

The peak of torch's tensors is counted in each rank, see counted_peaks.py, and the growth of the data segment, which is
what bench measures on a CPU, stands beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.cli.plan import forecasts_of
from bench.records.cell import Cell
from bench.records.forecast import Forecast
from bench.store.run_folder import Store

HERE = Path(__file__).parent
BATCHES = {"tiny": 32, "small": 2}
MATRIX = """
name: plan-{preset}
workload: {{name: ./counted_peaks.py:Counted, preset: {preset}}}
matrix:
  backend: [single, ddp, fsdp, fsdp_grad_op, fsdp2, zero1, zero2, zero3]
  grad_ckpt: [false, true]
  attention: [sdpa, eager]
  batch: {batch}
launch: {{num_processes: 2}}
measure: {{warmup_steps: 1, steps: 1, phase_steps: 0}}
"""
HEAD = (
    "| preset | backend | attention | checkpointing | batch | predicted MiB | counted MiB | error | data segment MiB |"
)


def measure(folder: Path) -> tuple[dict[str, int], list[tuple[Cell, int, int]]]:
    """By the cell's id: tensors counted at the peak of the worst rank. And each cell, its batch and data segment."""
    counted, cells = folder / "counted.jsonl", []
    (folder / "counted_peaks.py").write_text((HERE / "counted_peaks.py").read_text())
    for preset, batch in BATCHES.items():
        matrix = folder / f"{preset}.yaml"
        matrix.write_text(MATRIX.format(preset=preset, batch=batch))
        command = [sys.executable, "-m", "bench.cli", "run", str(matrix), "--out", str(folder / preset)]
        subprocess.run(command, check=True, env={**os.environ, "BENCH_COUNTED": str(counted)})
        for result in Store(folder / preset).results():
            assert result.outcome.kind == "ok", result.outcome
            segment = max(rank.memory.peak_allocated_bytes or 0 for rank in result.outcome.ranks)
            cells.append((result.attempt.cell, result.attempt.batch_per_rank, segment))
    peaks: dict[str, int] = {}
    for line in map(json.loads, counted.read_text().splitlines()):
        name = Cell.model_validate(line["cell"]).id
        peaks[name] = max(peaks.get(name, 0), line["peak_bytes"])
    return peaks, cells


def tensors(forecast: Forecast, batch: int) -> float:
    """The predicted peak without the copies of collectives, which are not counted."""
    return (
        max(line.at(batch) - line.parts.get("transport", 0) for line in forecast.lines) + forecast.input_bytes * batch
    )


def table(rows: list[tuple[Cell, int, float, int, int]]) -> str:
    """As markdown: each cell with its batch, the predicted and the counted peak, and the data segment."""
    errors = [abs(planned / counted - 1) for _, _, planned, counted, _ in rows]
    summary = f"{len(rows)} cells: median error {median(errors):.1%}, worst {max(errors):.1%}."
    lines = [HEAD, "| --- " * 4 + "| ---: " * 5 + "|"]
    for cell, batch, planned, counted, segment in rows:
        o = cell.options
        lines.append(
            f"| {o.get('preset', cell.workload)} | {cell.backend} | {o.get('attention') or 'default'} |"
            f" {'yes' if o['grad_ckpt'] else 'no'} | {batch} |"
            f" {planned / 2**20:.1f} | {counted / 2**20:.1f} | {planned / counted - 1:+.1%} | {segment / 2**20:.0f} |"
        )
    return "\n".join([summary, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, help="where the table goes, as markdown")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peaks, cells = measure(folder)
        forecasts, _ = forecasts_of([cell for cell, _, _ in cells], "cpu", cells[0][0].workload, name)
    rows = [
        (cell, batch, tensors(forecasts[cell.id], batch), peaks[cell.id], segment) for cell, batch, segment in cells
    ]
    chosen.table.write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
