"""Ctrl-C and SIGTERM before a command has begun: while its modules are imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    ("slow", "arguments"), [("typer", ["--help"]), ("pydantic", ["doctor"]), ("yaml", ["run", "x.yaml"])]
)
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_during_the_imports_leaves_no_traceback(
    slow: str, arguments: list[str], kind: signal.Signals, code: int, tmp_path: Path
) -> None:
    (tmp_path / f"{slow}.py").write_text(SLOW)
    command = [sys.executable, "-c", "from bench.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(kind)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (code, "")


MATRIX = """
command: [python, -c, "open('{out}', 'w').write('{{\\"t\\": 0.1, \\"n\\": 1}}')", "{batch}"]
result: {step_time_s: t, num_processes: n}
matrix: {batch: [1, 2]}
measure: {launches: 1}
"""
INTERRUPTED = """
import sys
from pathlib import Path

class InterruptsImports:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy.linalg", "scipy.special", "scipy.optimize") and list(Path("run").glob("**/result.json")):
            raise KeyboardInterrupt

sys.meta_path.insert(0, InterruptsImports())
from bench.cli import main
main()
"""


def test_after_the_first_result_a_signal_meets_no_import_of_a_compiled_library(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    command = [sys.executable, "-c", INTERRUPTED, "run", "m.yaml", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
    assert (tmp_path / "run/report.md").exists()
