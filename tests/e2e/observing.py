"""What the tests of observed scripts share: their matrix, and what was seen of a script."""

import shutil
from pathlib import Path

import yaml
from harness import HERE

from bench.records.cell import Regime
from bench.records.observed import Observed
from bench.records.outcome import Ok, Result

SCRIPTS = HERE / "scripts"
TORCHRUN = ["torchrun", "--standalone", "--nproc_per_node", "{num_processes}"]
PLAIN = [*TORCHRUN, "plain_ddp.py", "--batch", "{batch}", "--style", "{style}"]
MEASURE = {"warmup_steps": 2, "steps": 6}


def matrix(to: Path, command: list[str], **content: object) -> str:
    """A matrix for scripts in a folder of their own, which must stay as it is."""
    folder = to / "scripts"
    if not folder.exists():
        shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = to / "observed.yaml"
    given = {"command": command, "folder": str(folder), "measure": MEASURE, "launch": {"num_processes": 2}, **content}
    file.write_text(yaml.safe_dump(given))
    return str(file)


def seen(result: Result, rank: int = 0) -> Observed:
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome.ranks[rank].observed


def regime(result: Result) -> Regime:
    assert isinstance(result.outcome, Ok), result.outcome
    return result.outcome.ranks[0].regime


def per_step(result: Result) -> tuple[float | None, float | None]:
    """Forwards and samples of a rank in a step."""
    observed = seen(result)
    return observed.forwards and observed.forwards / 6, observed.samples and observed.samples / 6
