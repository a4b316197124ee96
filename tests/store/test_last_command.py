"""The sources of the last command in a run's folder."""

from pathlib import Path

from bench.records.sources import LastCommand
from bench.store import last_command
from bench.store.run_folder import Store

COMMAND = LastCommand(at="2026-01-01T00:00:00+00:00", workload="pi07", sources={"model/policy.py": "0"})


def test_each_run_knows_its_last_command(tmp_path: Path) -> None:
    stores = {name: Store(tmp_path / name) for name in ("a", "b", "none")}
    later = COMMAND.model_copy(update={"at": "2026-01-02T00:00:00+00:00"})
    for name, command in (("a", COMMAND), ("b", COMMAND), ("b", later)):
        (tmp_path / name).mkdir(exist_ok=True)
        last_command.keep(tmp_path / name, command)
    assert last_command.of_runs(stores) == {"a": COMMAND, "b": later}
    assert not any(store.unreadable for store in stores.values())


def test_a_torn_file_is_noted_as_unreadable(tmp_path: Path) -> None:
    store = Store(tmp_path)
    last_command.keep(tmp_path, COMMAND)
    file = tmp_path / "last_command.json"
    file.write_text(file.read_text()[:40])
    assert last_command.of_runs({"run": store}) == {}
    assert list(store.unreadable) == [file]
