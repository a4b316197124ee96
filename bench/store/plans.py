"""The plan that a run's folder keeps, so that its report can set it beside what was measured, on any machine."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from bench.records.forecast import Forecast, KeptPlan
from bench.store import spool


def keep(root: Path, forecasts: Iterable[Forecast]) -> None:
    """Keep these forecasts in the run's folder ``root``, if it can be written, and earlier ones of other cells."""
    earlier = read(root)
    known = {one.cell.id: one for one in earlier.forecasts} if earlier else {}
    found = tuple((known | {one.cell.id: one for one in forecasts}).values())
    if found and (earlier is None or found != earlier.forecasts):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):
            spool.write(file(root), KeptPlan(planned_at=now, forecasts=found))


def read(root: Path) -> KeptPlan | None:
    """None without a plan, or with one of another version: it can be made again."""
    try:
        return spool.read(file(root), KeptPlan)
    except (ValidationError, OSError):
        return None


def forget(root: Path) -> None:
    """Of sources that have changed since: it is the plan of another model."""
    with suppress(OSError):
        file(root).unlink(missing_ok=True)


def file(root: Path) -> Path:
    return root / "plan.json"
