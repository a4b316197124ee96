"""The files of the user that hold what `bench calibrate` learnt."""

from pathlib import Path

import pytest
from examples import CUDA_MACHINE, MACHINE

from bench.errors import InputError
from bench.records.calibration import Calibration, Pace, Paces
from bench.store import calibrations

LEARNT = Calibration(
    machine=MACHINE, measured_at="2030-01-02T03:04:05+00:00", cells=2, launches=10, sd=0.01, degrees=18
)


def test_the_newest_calibration_of_this_machine_counts(tmp_path: Path) -> None:
    later = LEARNT.model_copy(update={"measured_at": "2030-02-01T00:00:00+00:00", "sd": 0.02})
    elsewhere = later.model_copy(update={"measured_at": "2030-03-01T00:00:00+00:00", "machine": CUDA_MACHINE})
    assert calibrations.newest(MACHINE, tmp_path / "none") is None
    files = [calibrations.save(each, tmp_path) for each in (later, LEARNT, elsewhere)]
    assert files[1].name == "calibration-2030-01-02T030405Z.json"
    assert calibrations.newest(MACHINE, tmp_path) == later
    assert calibrations.newest(CUDA_MACHINE, tmp_path) == elsewhere


def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    calibrations.save(LEARNT, tmp_path).write_text("{")
    assert calibrations.newest(MACHINE, tmp_path) is None


def test_the_latest_paces_come_first(tmp_path: Path) -> None:
    pace = Pace(seconds=0.5, least=1.0, most=2.0)
    first = Paces(
        machine=MACHINE,
        fitted_at="2030-01-02T03:04:05+00:00",
        runs=("a",),
        steps=9,
        paces={"operators": pace},
        off_median=0.1,
        off_worst=0.2,
    )
    second = first.model_copy(update={"fitted_at": "2030-02-01T00:00:00+00:00"})
    files = [calibrations.save_paces(each, tmp_path) for each in (first, second)]
    (tmp_path / "paces-torn.json").write_text("{")
    calibrations.save(LEARNT, tmp_path)
    assert files[0].name == "paces-2030-01-02T030405Z.json"
    assert calibrations.paces(tmp_path) == [second, first]


def test_a_variable_chooses_the_folder() -> None:
    assert calibrations.folder({"BENCH_STATE": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert calibrations.folder({"XDG_STATE_HOME": "/b"}) == Path("/b/bench")
    assert calibrations.folder({}) == Path.home() / ".local" / "state" / "bench"


def test_a_user_without_a_home_has_learnt_nothing_and_is_told_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    nowhere = calibrations.folder({})
    assert calibrations.newest(MACHINE, nowhere) is None
    with pytest.raises(InputError) as refused:
        calibrations.save(LEARNT, nowhere)
    assert "BENCH_STATE" in str(refused.value)
