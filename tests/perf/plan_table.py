"""Prints the tables of reports/plan_cpu.md: every row of `make perf-plan`'s runs, planned and measured."""

from pathlib import Path
from statistics import median

from bench.report.plan import Checked, check
from bench.report.summary import summarize
from bench.store.run_folder import Store
from bench.units import percent

REPORTS = Path(__file__).parents[2] / "reports"
RUNS = {
    "plan-tiny": "The bundled policy, preset tiny",
    "plan-small": "The bundled policy, preset small",
    "plan-gpt2": "Transformers: GPT-2, four layers of width 256, 128 tokens",
    "plan-llama": "Transformers: Llama, four layers of width 256, 128 tokens",
    "plan-t5": "Transformers: T5, three and three layers of width 256, 128 tokens",
}
HEAD = "| cell | batch | planned MiB | counted MiB | error | step ms | at least | estimated | error |"


def main() -> None:
    for name, title in RUNS.items():
        rows = checked(REPORTS / name)
        errors = [abs(row.error) for row in rows]
        bounds = [row.least_s / row.step_s for row in rows if row.least_s and row.step_s]
        off = [abs(row.estimate_error) for row in rows if row.estimate_error is not None]
        print(f"## {title}\n")
        print(
            f"`reports/{name}`: {len(rows)} peaks, median error {median(errors):.1%}, worst {max(errors):.1%}. Lower"
            f" bounds\nabove the measured step: {sum(bound > 1 for bound in bounds)}; bounds are {percent(min(bounds))}"
            f" to {percent(max(bounds))} of it. {len(off)} estimates: median\nerror {percent(median(off))}, worst"
            f" {percent(max(off))}.\n"
        )
        print(HEAD, "| --- |" + " ---: |" * 8, *map(line, rows), "", sep="\n")


def checked(run: Path) -> list[Checked]:
    store = Store(run)
    plan = store.forecasts()
    learnt = store.calibration()
    forecasts = {one.cell.id: one for one in plan.forecasts} if plan else {}
    return check(summarize(store.results()), forecasts, learnt.rates if learnt else None)


def line(row: Checked) -> str:
    cell = row.name.rpartition(", batch ")[0].partition(", num_processes")[0].replace("attention ", "")
    cells = [
        cell.replace("grad_ckpt true", "ckpt on").replace("grad_ckpt false", "ckpt off"),
        str(row.id.batch_per_rank),
    ]
    cells += [f"{row.planned_bytes / 2**20:.1f}", f"{row.measured_bytes / 2**20:.1f}", f"{row.error:+.1%}"]
    cells += ["n/a" if s is None else f"{s * 1000:.0f}" for s in (row.step_s, row.least_s, row.estimate_s)]
    cells.append("n/a" if row.estimate_error is None else f"{row.estimate_error:+.0%}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
