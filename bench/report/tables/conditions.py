"""What else ran on the machine and its GPUs during the attempts of a cell."""

from collections.abc import Sequence

from bench.records.conditions import Conditions, GpuConditions
from bench.report.conditions import disturbances
from bench.report.tables.table import Column, Table, table_of
from bench.units import UNKNOWN, gib, percent


def machine(attempts: Sequence[tuple[str, Conditions]]) -> Table:
    """One row an attempt, which is named by its batch."""
    columns = [
        Column[tuple[str, Conditions]]("batch per rank", lambda pair: pair[0], numeric=True),
        Column[tuple[str, Conditions]](
            "others' CPU before", lambda pair: percent(pair[1].others_cpu_share_before), numeric=True
        ),
        Column[tuple[str, Conditions]]("others' CPU", lambda pair: percent(pair[1].others_cpu_share), numeric=True),
        Column[tuple[str, Conditions]](
            "least available GiB", lambda pair: gib(pair[1].available_bytes_min), numeric=True
        ),
        Column[tuple[str, Conditions]]("swapped GiB", lambda pair: gib(pair[1].swapped_bytes), numeric=True),
        Column[tuple[str, Conditions]]("disk free GiB", lambda pair: gib(pair[1].disk_free_bytes_min), numeric=True),
        Column[tuple[str, Conditions]]("disturbances", lambda pair: "; ".join(disturbances(pair[1])) or "none"),
    ]
    return table_of(
        "Machine conditions",
        attempts,
        columns,
        notes=(
            "others: processes that do not belong to this run, as a share of all cores. before: since the previous"
            " attempt.",
        ),
    )


def gpus(attempts: Sequence[tuple[str, Conditions]]) -> Table:
    """One row a GPU and attempt, which is named by its batch."""
    line = tuple[str, int, GpuConditions]
    columns = [
        Column[line]("batch per rank", lambda line: line[0], numeric=True),
        Column[line]("GPU", lambda line: str(line[1]), numeric=True),
        Column[line]("busy before", lambda line: percent(line[2].busy_share_before), numeric=True),
        Column[line]("others before", lambda line: _count(line[2].others_before), numeric=True),
        Column[line]("GiB before", lambda line: gib(line[2].others_bytes_before), numeric=True),
        Column[line]("least clock", lambda line: percent(line[2].sm_clock_share_min), numeric=True),
        Column[line]("most °C", lambda line: _count(line[2].temperature_c_max), numeric=True),
        Column[line]("throttled", lambda line: _throttled(line[2])),
    ]
    return table_of(
        "GPU conditions",
        [(batch, index, gpu) for batch, conditions in attempts for index, gpu in enumerate(conditions.gpus)],
        columns,
        notes=("others: processes. least clock: share of the GPU's highest clock, while steps ran.",),
    )


def _throttled(gpu: GpuConditions) -> str:
    return UNKNOWN if gpu.throttled is None else ", ".join(gpu.throttled) or "no"


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
