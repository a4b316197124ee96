"""Small workloads of one's own on real ranks: each style, found beside the matrix, and refused where it is wrong."""

import shutil
from pathlib import Path

import pytest
from harness import HERE, Bench
from kept import KeptBench
from typer.testing import CliRunner

from bench.cli.app import app
from bench.records.outcome import Ok
from bench.store.run_folder import Store

BENCH = KeptBench
MISTAKES = [
    (
        "own",
        {"mistake": "differs"},
        "the workload's build differs between processes: blocks.0.inner.weight of rank 1 is not that of rank 0",
    ),
]
CHEAPER_ELSEWHERE = [
    ("WrongUnits", {}, "the workload's units name Blok, but no module of its model is of that class"),
    ("own", {"mistake": "no samples"}, "the workload's dataset is empty"),
    (
        "own",
        {"mistake": "lengths"},
        "samples of the workload cannot be stacked to a batch: [0] is (1, 16) in one sample and (2, 16) in another",
    ),
    (
        "own",
        {"mistake": "no loss"},
        "the workload's forward(x) does not take its samples: too many positional arguments",
    ),
]
"""The same way to one message; tests/runner tests what finds them."""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workloads, which is neither installed nor where bench is run."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(HERE / "own.py", folder / "own_styles.py")
    return folder


def test_each_style_trains_to_the_same_loss_on_each_backend(
    bench: Bench, beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.folder = beside
    matrix = bench.matrix(
        workload={"name": "./own_styles.py:Own"},
        matrix={"backend": ["ddp", "fsdp2", "zero2"], "style": ["pair", "keywords", "batch"], "batch": 2},
    )
    elsewhere = beside / "elsewhere"
    elsewhere.mkdir()
    said = bench("run", matrix, "--out", str(beside / "run"), cwd=elsewhere)
    assert said.count("units: Block, the blocks that the model repeats") == 1
    first: dict[str, set[float]] = {}
    for result in bench.results():
        outcome, cell = result.outcome, result.attempt.cell
        assert isinstance(outcome, Ok), outcome
        assert cell.workload == "own_styles:Own"
        assert {"own_styles.py"} == {name for name in result.sources or {} if not name.startswith("bench/")}
        assert all(rank.units == ("Block",) for rank in outcome.ranks)
        if cell.backend == "fsdp2":
            assert outcome.ranks[0].regime.sharded_parameters == outcome.ranks[0].regime.parameters
        first.setdefault(cell.backend, set()).add(round(outcome.ranks[0].warmup_losses[0], 2))
    assert len(set.union(*first.values())) == 1, first

    # Nothing is measured again, whoever asks from wherever; the run's own matrix finds the workload too.
    before = bench.results()
    assert "9 attempts, 9 of them finished before" in bench("run", matrix, "--out", str(beside / "run"), cwd=beside)
    kept = bench("run", str(beside / "run/matrix.yaml"), "--out", str(beside / "run"), cwd=elsewhere)
    assert "9 attempts, 9 of them finished before" in kept
    assert bench.results() == before
    monkeypatch.chdir(elsewhere)
    assert "cannot be read" not in CliRunner().invoke(app, ["report", str(beside / "run")]).output

    # So does its plan, as long as the workload is the one that was measured. Too small for malloc: peaks may be 0.
    CliRunner().invoke(app, ["plan", "--check", str(beside / "run")])
    assert (plan := Store(beside / "run").forecasts()) is not None
    assert {one.cell.id for one in plan.forecasts} == {result.attempt.cell.id for result in before}
    assert len(plan.forecasts) == 9
    with (beside / "own_styles.py").open("a") as file:
        file.write("# edited\n")
    changed = CliRunner().invoke(app, ["plan", "--check", str(beside / "run")])
    assert changed.exit_code == 2
    assert "no measured peak has a plan" in changed.output
    assert "own_styles.py: changed since the run" in changed.output


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [*MISTAKES, *(pytest.param(*one, marks=pytest.mark.long) for one in CHEAPER_ELSEWHERE)],
)
def test_a_mistake_is_one_message_and_nothing_is_stored(
    bench: Bench, beside: Path, name: str, options: dict[str, str], message: str
) -> None:
    workload = {"name": f"{beside / 'own_styles.py'}:{name}", **options}
    matrix = bench.matrix(workload=workload, matrix={"backend": ["ddp", "fsdp2"], "batch": 2})
    said = bench("run", matrix, "--out", str(bench.folder / "run"), expect=2)
    assert said.count(message) == 1
    assert "toy.yaml:" in said.splitlines()[-3] + said.splitlines()[-2] + said.splitlines()[-1]
    assert "Traceback" not in said
    assert not list((bench.folder / "run").rglob("result.json"))
