"""An edited workload is measured again, an unedited one is not; each result holds its sources and its environment."""

import shutil

from harness import HERE, Bench

from bench.records.outcome import Ok


def test_an_edited_workload_is_measured_again(bench: Bench) -> None:
    """Untracked files in the user's folder: the workload's own module, and one that it imports."""
    folder = bench.folder / "code"
    folder.mkdir()
    shutil.copy(HERE / "toy.py", folder / "toy_base.py")
    (folder / "toy_mine.py").write_text("from toy_base import Toy as Mine\n")
    matrix = bench.matrix(
        workload={"name": "toy_mine:Mine"}, matrix={"backend": "single", "num_cams": [1, 2], "batch": 2}
    )

    def run(*options: str) -> str:
        return bench(
            "run",
            matrix,
            "--out",
            str(bench.folder / "run"),
            *options,
            cwd=folder,
            MALLOC_ARENA_MAX="3",
            NCCL_ALGO="Ring",
        )

    run()
    first = bench.results()
    for result in first:
        assert isinstance(result.outcome, Ok), result.outcome
        assert {"toy_mine.py", "toy_base.py", "bench/runner/steps.py"} <= set(result.sources)
        assert {"MALLOC_ARENA_MAX": "3", "NCCL_ALGO": "Ring"}.items() <= result.machine.environment.items()
        assert result.machine.python is not None
        assert result.machine.system is not None
    run()
    assert bench.results() == first
    base = folder / "toy_base.py"
    base.write_text(base.read_text().replace("torch.tanh", "torch.sigmoid"))
    kept = run("--keep-stale")
    assert "2 stored results were made by older code (toy_base.py changed): kept, and marked in the report" in kept
    assert bench.results() == first
    written = (bench.folder / "run" / "report-full.md").read_text()
    for shown in (kept, written, bench("show", "num_cams=1", bench.folder / "run")):
        assert "2 (stale)" in shown
    one = run("--select", "num_cams=1")
    assert "1 stored result was made by older code (toy_base.py changed): measured again; --keep-stale keeps" in one
    by_cams = {result.axes["num_cams"]: result for result in bench.results()}
    assert by_cams[2] in first
    assert by_cams[1] not in first
    assert "2 (stale)" in bench("report", "--full", str(bench.folder / "run"), cwd=folder)
    run()
    second = bench.results()
    assert not any(result in first for result in second)
    for before, after in zip(first, second, strict=True):
        assert isinstance(before.outcome, Ok)
        assert before.outcome.ranks[0].losses != after.outcome.ranks[0].losses
    assert "(stale)" not in bench("report", "--full", str(bench.folder / "run"), cwd=folder)
