"""`bench matrices`, and matrices by name."""

import pytest
from commands import MATRICES, bench

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_list_names_every_file_and_one_can_be_printed() -> None:
    names = [line.split()[0] for line in bench("matrices").output.splitlines()]
    assert names == sorted(file.stem for file in MATRICES.glob("*.yaml"))
    assert bench("matrices", "quickstart").output == (MATRICES / "quickstart.yaml").read_text()


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    done = bench("matrices", "quickstat")
    assert done.exit_code == 2
    assert "did you mean 'quickstart'?" in done.stderr


def test_a_matrix_runs_by_name_from_any_folder() -> None:
    by_name, by_path = (bench("run", matrix, "--dry-run") for matrix in ("quickstart", f"{MATRICES}/quickstart.yaml"))
    assert by_name.exit_code == 0
    assert by_name.output == by_path.output
