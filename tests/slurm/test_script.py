"""The script of a dry run, submitted by hand."""

import json
from pathlib import Path

from cluster import Cluster
from harness import wait_for
from runs import SlurmBench


def test_the_script_of_a_dry_run_works_by_hand_and_without_slurm_on_the_machine(
    bench: SlurmBench, slurm: Cluster, tmp_path: Path
) -> None:
    matrix = bench.matrix(matrix={"backend": ["ddp", "fsdp"], "batch": 2})
    command = ("run", matrix, "--launcher", "slurm", "--out", str(bench.out), "--dry-run")
    script = bench(*command, PATH="/nowhere")
    assert not bench.out.exists()
    (tmp_path / "job.sh").write_text(script)
    job = slurm("sbatch", "--parsable", f"--output={tmp_path}/%j.out", str(tmp_path / "job.sh")).strip()
    wait_for(lambda: not slurm.jobs(), 180)
    assert [result.outcome.kind for result in bench.store().results()] == ["ok", "ok"]
    assert json.loads((bench.out / "slurm" / job / "end.json").read_text()) == {"exit_code": 0}
    assert (bench.out / "report.md").exists()
