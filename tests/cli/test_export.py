"""What `bench export` refuses; tests/report/render/test_trackers.py reads what it writes."""

from pathlib import Path

import pytest
from commands import bench
from examples import stored

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_an_unknown_tracker_is_refused_with_the_list() -> None:
    done = bench("export", "wandbb", "run")
    assert done.exit_code == 2
    assert all(f"'{name}'" in done.stderr for name in ("wandb", "mlflow", "trackio"))


def test_a_folder_without_a_run_and_a_run_without_results_are_one_message() -> None:
    done = bench("export", "wandb", "nowhere")
    assert (done.exit_code, done.stderr) == (2, "bench: nowhere: no such folder\n  `bench run MATRIX` makes one\n")
    stored(Path("empty"), [])
    done = bench("export", "wandb", "empty")
    assert (done.exit_code, done.stderr) == (2, "bench: empty: has no results yet\n  `bench run` measures some\n")
