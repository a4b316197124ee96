"""The sources of the last command that measured in a run's folder: what it kept of other sources is stale."""

from collections.abc import Mapping
from pathlib import Path

from bench.records.sources import LastCommand
from bench.store import spool
from bench.store.run_folder import Store


def keep(root: Path, command: LastCommand) -> None:
    spool.write(_file(root), command)


def of_runs(stores: Mapping[str, Store]) -> dict[str, LastCommand]:
    """By the run's name; without the runs that do not know theirs."""
    found = {name: store.load(_file(store.root), LastCommand) for name, store in stores.items()}
    return {name: command for name, command in found.items() if command is not None}


def _file(root: Path) -> Path:
    return root / "last_command.json"
