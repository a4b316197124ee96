"""`make perf-plan-search`: what a plan is worth to a search, with real launches under a memory limit.

Ten cells on the CPU, each backend at least once. The largest batch of each is certified twice, with the plan and
without. Attempts count until the certificate, and a walk is one of them. Without a plan, each search begins with the
answer of the cell before it, and with one, with what its plan was off by: so does `bench probe`.

A memory limit counts what malloc keeps of freed tensors, which no plan predicts, unless MALLOC_MMAP_THRESHOLD_ is set:
`make perf-plan-search` sets it. Without it, peaks of one batch also differ more between launches.

The searches are logged one by one, and those that are in the log are not repeated: `--seconds` ends a part of them.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from bench import backends, machine, workloads
from bench.diagnosis.classify import classify
from bench.launch import attempt_files
from bench.launch.environment import added_environment
from bench.launch.executor import Context, LaunchResult
from bench.launch.rank_servers import Forking
from bench.launch.watch import Limits
from bench.records.cell import Attempt, Cell, Measure, Walk
from bench.records.forecast import Forecast
from bench.records.outcome import Result
from bench.records.rank_outcome import Walked
from bench.records.verdict import Goal
from bench.search import Observation, Prior
from bench.search.data import evidence
from bench.search.max_batch import bracket_of
from bench.store import spool
from bench.sweep import priors, probe
from bench.sweep.forecasts import forecasts_of

HARDWARE = machine.detect()
MACHINE = machine.record(HARDWARE)
# A candidate takes 50 to 80 MiB: peaks of one batch differ by as much as 50 between launches, for what malloc keeps.
GOAL = Goal(max_batch=4096, granularity=2)
LIMIT_MIB = 1024
LLAMA = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "seq_len": 64,
}
GPT2 = {"n_layer": 4, "n_embd": 64, "n_head": 4, "seq_len": 64}
POLICY = {"preset": "tiny", "num_cams": 4, "n_obs_history": 4}
CELLS: list[tuple[str, str, dict[str, Any], str, bool]] = [
    ("single", "hf:llama", LLAMA, "sdpa", False),
    ("ddp", "hf:llama", LLAMA, "eager", True),
    ("fsdp", "hf:llama", LLAMA, "eager", False),
    ("fsdp2", "hf:llama", LLAMA, "sdpa", True),
    ("zero2", "hf:gpt2", GPT2, "sdpa", False),
    ("zero3", "hf:gpt2", GPT2, "eager", True),
    ("fsdp_grad_op", "hf:gpt2", GPT2, "sdpa", True),
    ("ddp", "pi07", POLICY, "sdpa", False),
    ("zero1", "pi07", POLICY, "eager", False),
    ("fsdp2", "pi07", POLICY, "eager", False),
]
HEAD = (
    "| workload | backend | attention | checkpointing | predicted max | certified max | error | attempts, plan |"
    " attempts, no plan | tried with the plan |"
)


class Search(NamedTuple):
    """One search up to its certificate."""

    most: int | None
    attempts: int
    seen: list[Observation]


class Certified(Exception):
    """Ends a search: best and safe cost the same with and without a plan."""


def cell_of(backend: str, workload: str, options: dict[str, Any], attention: str, grad_ckpt: bool) -> Cell:
    config = workloads.load(workload).Config(**options, attention=attention, grad_ckpt=grad_ckpt)
    return Cell(
        backend=backend,
        workload=workload,
        options=config.model_dump(mode="json"),
        num_processes=1 if backend == "single" else 2,
        mixed_precision="no",
        memory_limit_bytes=LIMIT_MIB * 2**20,
        measure=Measure(warmup_steps=1, steps=3, phase_steps=0),
    )


class Ranks:
    """Rank servers, and a folder for each launch."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        modules = sorted({module for family in backends.FAMILIES.values() for module in family.preloads})
        self.servers = Forking(
            Context(
                hardware=HARDWARE,
                new_folder=self.new,
                preloads=dict.fromkeys((1, 2), modules),
                modules=["bench.model.workload"],
                waiting=lambda _: None,
                note=print,
            )
        )

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def launch(self, asked: Attempt | Walk, folder: Path) -> LaunchResult:
        environment = added_environment(asked.cell.num_processes, HARDWARE, os.environ)
        units = workloads.load(asked.cell.workload).units
        for name, text in attempt_files.files(asked, units, HARDWARE.device, environment, str(folder)).items():
            spool.write_text(folder / name, text)
        return self.servers.run(asked.cell, folder, Limits(300, None), lambda _: None)

    def search(self, cell: Cell, start: int | None, plan: Callable[[], Prior | None]) -> Search:
        """Until max is certified."""
        seen, launches = list[Observation](), 0

        def walk(batches: tuple[int, ...]) -> list[Walked]:
            nonlocal launches
            launches += 1
            folder = self.new()
            self.launch(Walk(cell=cell, batches_per_rank=batches), folder)
            found = [spool.read(folder / f"walk{rank}.json", Walked) for rank in range(cell.num_processes)]
            walked = [rank for rank in found if rank is not None]
            seen.extend(probe.hints(walked))
            return walked

        def attempt(batch: int, full: bool, why: str) -> Result:
            nonlocal launches
            launches += 1
            asked = Attempt(cell=cell, batch_per_rank=batch, short=not full)
            ended = self.launch(asked, self.new())
            outcome = classify(ended.ranks, world_size=cell.num_processes, launcher_error=ended.launcher_error)
            result = Result(
                attempt=asked,
                axes={},
                outcome=outcome,
                machine=MACHINE,
                isolation=ended.isolation,
                started_at="2026-01-01T00:00:00+00:00",
                wall_s=0.0,
            )
            one = probe.observation(result)
            assert one is not None, outcome
            seen.append(one)
            if bracket_of(evidence(seen, GOAL).seen).certificate(GOAL):
                raise Certified
            return result

        try:
            found = probe.search(GOAL, start, [], [], walk, attempt, plan)
        except Certified:
            return Search(bracket_of(evidence(seen, GOAL).seen).fits or None, launches, seen)
        raise AssertionError(found)


def searches(ranks: Ranks, forecasts: dict[int, Forecast], log: Path, until_s: float) -> None:
    """Make those that the log has not, those with a plan first."""
    done = read(log)
    for planned, (index, forecast) in product((True, False), forecasts.items()):
        if (index, planned) in done:
            continue
        if time.monotonic() > until_s:
            return
        before, earlier = done.get((index - 1, planned)), forecasts.get(index - 1)
        prior = priors.prior_of(forecast, HARDWARE)
        if before and earlier:
            prior = prior.raised(priors.off(priors.prior_of(earlier, HARDWARE), before.seen) or 0.0)
        start_s, start = time.monotonic(), before.most if before else None
        found = ranks.search(forecast.cell, start, partial(_same, prior if planned else None))
        done[index, planned] = found
        print(f"{index} {forecast.cell.backend}, {'with a plan' if planned else 'without'}: {found.most} of"
              f" {forecast.largest(LIMIT_MIB * 2**20)}, {found.attempts} attempts, {tried(found.seen)},"
              f" {time.monotonic() - start_s:.0f} s", flush=True)  # fmt: skip
        with log.open("a") as file:
            seen = [one.model_dump(mode="json") for one in found.seen]
            line = {"cell": index, "plan": planned, "most": found.most, "attempts": found.attempts, "seen": seen}
            file.write(json.dumps(line) + "\n")


def _same(prior: Prior | None) -> Prior | None:
    return prior


def read(log: Path) -> dict[tuple[int, bool], Search]:
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return {
        (one["cell"], one["plan"]): Search(
            one["most"], one["attempts"], [Observation.model_validate(seen) for seen in one["seen"]]
        )
        for one in lines
    }


def table(forecasts: dict[int, Forecast], done: dict[tuple[int, bool], Search]) -> str:
    """As markdown: what was predicted and certified, and the attempts of either search. Of what is in the log."""
    rows = {index: _row(forecast, done[index, True], done.get((index, False)))
            for index, forecast in forecasts.items() if (index, True) in done}  # fmt: skip
    near = sum(round(abs(_error(forecasts[index], done[index, True])), 9) <= 0.1 for index in rows)
    both = [index for index in rows if (index, False) in done]
    counts = [mean(done[index, planned].attempts for index in both) for planned in (True, False)] if both else []
    summary = f"Predicted within 10 % of the certified batch in {near} of {len(rows)} cells."
    if counts:
        summary += f" Attempts of the {len(both)} that were searched both ways: {counts[0]:.1f} with the plan,"
        summary += f" {counts[1]:.1f} without."
    return "\n".join([summary, "", HEAD, "| --- " * 4 + "| ---: " * 5 + "| --- |", *rows.values()])


def _error(forecast: Forecast, found: Search) -> float:
    return forecast.largest(LIMIT_MIB * 2**20) / found.most - 1 if found.most else 1.0


def _row(forecast: Forecast, planned: Search, alone: Search | None) -> str:
    o, certified = forecast.cell.options, str(planned.most)
    if alone is not None and alone.most != planned.most:
        certified += f" ({alone.most} without)"
    cells = (
        forecast.cell.workload,
        forecast.cell.backend,
        o["attention"],
        "yes" if o["grad_ckpt"] else "no",
        forecast.largest(LIMIT_MIB * 2**20),
        certified,
        f"{_error(forecast, planned):+.1%}",
        planned.attempts,
        "n/a" if alone is None else alone.attempts,
        tried(planned.seen),
    )
    return f"| {' | '.join(map(str, cells))} |"


def tried(seen: Sequence[Observation]) -> str:
    fresh = [f"{o.batch} {'fits' if o.outcome == 'ok' else 'does not'}" for o in seen if o.fresh]
    return ", ".join([*(["a walk"] if len(fresh) < len(seen) else []), *fresh])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="where each search is added, as JSON")
    parser.add_argument("--table", type=Path, help="where the table goes, as markdown")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further search after these")
    chosen = parser.parse_args()
    until_s = time.monotonic() + chosen.seconds
    cells = dict(enumerate(cell_of(*cell) for cell in CELLS))
    forecasts: dict[int, Forecast] = {}
    for name in dict.fromkeys(cell.workload for cell in cells.values()):
        those = [cell for cell in cells.values() if cell.workload == name]
        found, why = forecasts_of(those, "cpu", name, None)
        assert not why, why
        forecasts |= {index: found[cell.id] for index, cell in cells.items() if cell.id in found}
    forecasts = dict(sorted(forecasts.items()))
    with tempfile.TemporaryDirectory() as scratch:
        ranks = Ranks(Path(scratch))
        try:
            searches(ranks, forecasts, chosen.log, until_s)
        finally:
            ranks.servers.close()
    done = read(chosen.log)
    if chosen.table:
        chosen.table.write_text(table(forecasts, done) + "\n")


if __name__ == "__main__":
    main()
