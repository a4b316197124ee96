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
