"""The commands of the guide that need Slurm, on a real one, with the output that the guide shows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from documents import Command, Document, File, differences
from harness import ROOT, wait_for

pytestmark = pytest.mark.jobs

GUIDE = ROOT / "bench" / "guides" / "clusters.md"
NEEDS_SLURM = "needs Slurm"


def test_the_guide_shows_what_its_commands_print(slurm: Cluster, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **slurm.environment,
        "PATH": f"{Path(sys.executable).parent}:{slurm.environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    shutil.copytree(ROOT / "matrices", tmp_path / "matrices")
    ran = 0
    for step in Document.read(GUIDE).steps():
        if isinstance(step, File):
            (tmp_path / step.name).write_text(step.content)
        elif isinstance(step, Command) and step.not_run in (None, NEEDS_SLURM):
            done = subprocess.run(
                ["bash", "-c", step.text],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == step.exit_code, (step.text, done.stdout)
            assert differences(step.output, done.stdout) is None, (step.text, done.stdout)
            wait_for(lambda: not slurm.jobs(), 300)
            ran += step.not_run == NEEDS_SLURM
    assert ran >= 3
