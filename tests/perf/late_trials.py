"""Searches of a workload whose longest samples come late: do its largest and its safe batch train through?

Each trial searches anew, then trains a hundred steps with max and with safe under the same limit. The workload is that
of tests/e2e/ragged.py, whose tenth batch is four times as long. As a control, one that hides this runs out of memory.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from harness import HERE, Bench

from bench.records.verdict import Verdict
from bench.store.run_folder import Store

STEPS = 100
FEW = {"warmup_steps": 1, "steps": 3, "phase_steps": 0}
LIMIT = {"num_processes": 1, "memory_limit": "200MiB"}
SEARCH = {"max_batch": 512, "granularity": 4}


def trials(folder: Path, count: int, **workload: Any) -> Counter[str]:
    """Outcomes of a hundred steps, by ``max`` and ``safe``."""
    bench = Bench(folder)
    named: dict[str, Any] = {"workload": {"name": f"{HERE / 'ragged.py'}:Ragged", **workload}, "launch": LIMIT}
    numbers = list(range(count))
    searched = bench.matrix(
        "search", matrix={"backend": "single", "trial": numbers, "batch": "probe"}, probe=SEARCH, measure=FEW, **named
    )
    bench.start("run", searched, "--out", str(folder / "search")).communicate()
    trained, answers = [], {}
    for probe in Store(folder / "search").probes():
        assert isinstance(probe.found, Verdict), probe.found
        assert probe.found.max_batch_per_rank is not None
        assert probe.found.safe is not None
        of_trial = {"max": probe.found.max_batch_per_rank, "safe": probe.found.safe.batch}
        answers[probe.axes["trial"]] = of_trial
        trained += [
            {"backend": "single", "trial": probe.axes["trial"], "batch": batch}
            for batch in sorted({*of_trial.values()})
        ]
    whole = bench.matrix("whole", matrix={}, include=trained, measure={**FEW, "steps": STEPS}, **named)
    bench.start("run", whole, "--out", str(folder / "whole")).communicate()
    outcomes: Counter[str] = Counter()
    for result in Store(folder / "whole").results():
        batch = result.attempt.batch_per_rank
        names = [name for name, answer in answers[result.axes["trial"]].items() if answer == batch]
        outcomes.update(f"{name} {result.outcome.kind}" for name in names)
    return outcomes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, count, workload in (
            ("as it is", int(sys.argv[1]) if sys.argv[1:] else 20, {}),
            ("hiding it", 3, {"blind": True}),
        ):
            made = Path(folder) / name.replace(" ", "_")
            made.mkdir()
            print(f"{name}: {count} trials: {dict(sorted(trials(made, count, **workload).items()))}", flush=True)


if __name__ == "__main__":
    main()
