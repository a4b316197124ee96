"""Each example of CONTRIBUTING.md, applied to a copy of bench and used there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from draw import ROOT

TITLE = re.compile(
    r"^### Add (?P<what>.+)\n(?P<text>(?:(?!^### ).*\n)*?)```diff\n(?P<diff>(?:.*\n)*?)```$", re.MULTILINE
)
EXAMPLES = {
    example["what"]: example["diff"] for example in TITLE.finditer((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
}
REPORTS = """
from dataclasses import replace
from examples import FASTER, mixed, result
from bench.report.render import html, markdown, terminal
from bench.report.render.formats import FORMATS, by_ending
from bench.report.summary import summarize
from bench.report.tables import raw_matrix
from bench.report.tables.sections import Choices, Report
"""

IN_PYTHON = {
    "a column": REPORTS
    + """
table = raw_matrix.matrix(summarize(mixed()))
assert [row[table.headers.index("ranks")] for row in table.rows][:2] == ["2", "2"]
""",
    "a section of the report": REPORTS
    + """
again = [one.model_copy(update={"retried": "rendezvous"}) for one in mixed()[:1]]
for text in (markdown.render(Report(results=again).sections), html.render(Report(results=again).sections)):
    assert "Retries" in text
assert "Retries" not in markdown.render(Report(results=mixed()).sections)
""",
    "an export format": REPORTS
    + """
assert by_ending(".tsv") is FORMATS["tsv"]
assert FORMATS["tsv"].render(Report(results=mixed()), None).count("\\t") > 10
""",
    "a kind of outcome": REPORTS
    + """
from bench.diagnosis.classify import classify
from bench.records.outcome import Result
from bench.sweep.reuse import RERUN_KINDS

outcome = classify([], world_size=2, launcher_error="slurmstepd: PREEMPTED")
one = result(outcome)
assert Result.model_validate_json(one.model_dump_json()).outcome == outcome
report = Report(results=[one])
assert "preempted" in markdown.render(report.sections) and "preempted" in html.render(report.sections)

assert "preempted" in RERUN_KINDS["failed"]
""",
    "a figure": REPORTS
    + """
from bench.records.claim import Claim
from bench.report.claims import judge_claims
from bench.report.tables.export import records
from bench.report.tables.raw_matrix import matrix

claim = Claim.model_validate({**FASTER, "metric": "overhead_bytes_rank_max"})
assert judge_claims(summarize(mixed()), [claim])[0].verdict in ("CONFIRMED", "REFUTED", "UNDECIDED", "NOT TESTED")
assert "overhead_bytes_rank_max" in records(summarize(mixed()))[0]
assert "outside torch GiB" in matrix(summarize(mixed())).headers
""",
    "a device": """
import torch
from types import SimpleNamespace

from bench.records.machine import Hardware
from bench.runner import device

device._make_handles = lambda kind: None
torch.xpu = SimpleNamespace(set_device=print, mem_get_info=lambda: (2**33, 2**34), memory_reserved=lambda: 5)
hardware = Hardware(device="xpu", devices=2, cores=8, memory_bytes=2**34)
assert device.DEVICE_ADAPTERS[hardware.device]().limit_memory(None) == 2**33 + 5
""",
    "a launcher": """
from bench.launch.executor import Context
from bench.launch.launchers import LAUNCHERS
from bench.records.machine import Hardware

hardware = Hardware(device="cpu", devices=0, cores=2, memory_bytes=2**34)
context = Context(hardware=hardware, new_folder=None, preloads={}, modules=[], waiting=print, note=print)
LAUNCHERS["slow_start"](context).close()
""",
}
IN_THE_REPORT = {
    "a backend": "fsdp_no_shard",
    "a phase of a step": " check_batch",
    "a column": "| ranks |",
    "a figure": "outside torch GiB",
    "a launcher": "the launcher slow_start",
}
"""Of the whole report of a run on two ranks."""
WITHOUT_IT = {
    "a column": "tuple.index(x): x not in tuple",
    "a section of the report": "AssertionError",
    "an export format": "KeyError: 'tsv'",
    "a kind of outcome": "AssertionError",
    "a figure": "'overhead_bytes_rank_max'",
    "a device": "input_value='xpu'",
    "a launcher": "KeyError: 'slow_start'",
}
"""What the error says when a use runs without the change."""
IN_ONE_ROOM = ("a backend", "a column", "a section of the report", "an export format", "a figure")


MEASURE = """
import json, sys
from pathlib import Path
from bench.cli import main

def command(*words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)

RUN = ("run", "quickstart", "workload.name=e2e.toy:Toy", "workload.preset=auto", "launch.num_processes=2",
       "--select", "batch=1", "measure.steps=3", "measure.launches=1")
command(*RUN, "--axis", "backend=ddp,fsdp_no_shard")
command(*RUN, "--select", "backend=ddp", "--isolation", "slow_start", "--out", "reports/own")
[file] = Path("reports/own").glob("attempts/*/b1/result.json")
assert json.loads(file.read_text())["isolation"] == "slow_start"
file.write_text(json.dumps(json.loads(file.read_text()) | {"retried": "rendezvous"}))
command("report", "reports/own", "--full", "--format", "md", "--output", "full.md")
assert "Retries" in Path("full.md").read_text()
command("report", "reports/own", "--output", "rows.tsv")
assert Path("rows.tsv").read_text().count("\\t") > 10
"""
EACH_ON_ITS_OWN = """
import json, sys, traceback
failures = {}
for what, code in json.load(sys.stdin).items():
    try:
        exec(code, {})
    except Exception:
        failures[what] = traceback.format_exc()
print(json.dumps(failures))
"""


def copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(folder: Path, code: str, given: str = "") -> str:
    """What the code prints when it runs with the bench in this folder."""
    path = os.pathsep.join([str(folder), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def test_every_use_is_of_an_example() -> None:
    assert set(EXAMPLES) == set(IN_PYTHON) | set(IN_THE_REPORT)


def apply(what: str, changed: Path) -> None:
    command = ["git", "apply", "--unidiff-zero", "--verbose", "-"]
    applied = subprocess.run(command, cwd=changed, input=EXAMPLES[what], text=True, capture_output=True, check=False)
    assert applied.returncode == 0, applied.stderr


@pytest.mark.parametrize("what", EXAMPLES)
def test_an_example_applies_alone(what: str, tmp_path: Path) -> None:
    changed = copy(tmp_path)
    apply(what, changed)
    python(changed, IN_PYTHON.get(what, "import bench.runner.attempt"))


def test_the_examples_run_together_on_two_ranks_and_are_reported_on(tmp_path: Path) -> None:
    changed = copy(tmp_path)
    for what in EXAMPLES:
        apply(what, changed)
    python(changed, MEASURE)
    reports = {name: (changed / "reports" / name / "report-full.md").read_text() for name in ("quickstart", "own")}
    for what, words in IN_THE_REPORT.items():
        assert words in reports["own" if what == "a launcher" else "quickstart"], what


def test_without_its_change_each_use_fails_for_that_reason(tmp_path: Path) -> None:
    failures = json.loads(python(copy(tmp_path), EACH_ON_ITS_OWN, json.dumps(IN_PYTHON)))
    assert set(failures) == set(IN_PYTHON), "these need no change"
    assert {what: WITHOUT_IT[what] in failure for what, failure in failures.items()} == dict.fromkeys(IN_PYTHON, True)


@pytest.mark.parametrize("what", IN_ONE_ROOM)
def test_what_people_extend_most_is_a_change_in_one_room(what: str) -> None:
    files = re.findall(r"^\+\+\+ b/(bench/.+)/?[^/]*\.py$", EXAMPLES[what], re.MULTILINE)
    assert len({file.rpartition("/")[0] for file in files}) == 1
