"""The regime that was observed while it ran: sharding, parameters and dtypes, by backend."""

from typing import NamedTuple

from bench.records.cell import Regime
from bench.report.rows import Rank, Sampled, Summary
from bench.report.tables.table import Column, Table, table_of, without_repeats
from bench.units import UNKNOWN, percent


def _world(regime: Regime) -> str:
    """``2 × 4``: two nodes of four ranks. One node is not mentioned."""
    each = regime.ranks_per_node
    return str(regime.world_size) if each == regime.world_size else f"{regime.world_size // each} × {each}"


def parameters_of(regime: Regime) -> str:
    """``2,657,280 (40,960 trained)``; without the parenthesis where all are."""
    trained = f" ({regime.trained_parameters:,} trained)" if regime.trained_parameters < regime.parameters else ""
    return f"{regime.parameters:,}{trained}"


def _weights(regime: Regime) -> str:
    """Frozen weights are mentioned where they have another dtype."""
    other = regime.frozen_dtype not in (None, regime.weights_dtype)
    return f"{regime.weights_dtype}, frozen {regime.frozen_dtype}" if other else regime.weights_dtype


def _optimizer(regime: Regime) -> str:
    return regime.optimizer_dtype or ("no trained part here" if regime.trained_on_rank == 0 else "none")


REGIME_COLUMNS: list[Column[Regime]] = [
    Column("type", lambda regime: regime.distributed_type),
    Column("sharding", lambda regime: regime.sharding),
    Column("world size", _world, numeric=True),
    Column("parameters", parameters_of, numeric=True),
]
DTYPE_COLUMNS: list[Column[Regime]] = [
    Column("weights", _weights),
    Column("masters", lambda regime: regime.masters_dtype or "none"),
    Column("optimizer", _optimizer),
    Column("reduction", lambda regime: regime.reduction_dtype or "none"),
]


def _matmuls(regime: Regime) -> str:
    """The dtypes of matrix products, the one with the most FLOPs first; those below 1 % left out."""
    shares = sorted((regime.matmul_shares or {}).items(), key=lambda pair: -pair[1])
    within = {"float32": f"float32 (as {regime.float32_products})"} if regime.float32_products else {}
    return " + ".join(within.get(dtype, dtype) for dtype, share in shares if share >= 0.01) or UNKNOWN


def _options(regime: Regime) -> str:
    """The sharding options that are not usual among backends.

    FSDP, DDP and ZeRO-3 reduce gradients while backward runs. ZeRO-1 and ZeRO-2 do not by default, which can decide a
    comparison.
    """
    mesh = " x ".join(f"{name} {size}" for name, size in (regime.mesh or {}).items())
    reshards, overlap = regime.reshard_after_forward, regime.overlap_comm
    words = [
        mesh if regime.replicas > 1 else "",
        f"reshard_after_forward {str(reshards).lower()}" if reshards not in (None, True) else "",
        f"offload {regime.offload}" if regime.offload not in (None, "none") else "",
        f"overlap_comm {str(overlap).lower()}" if overlap is False or (overlap and regime.sharding != "zero3") else "",
    ]
    return ", ".join(word for word in words if word)


OPTIONS_COLUMN: Column[Regime] = Column("options", _options)
MATMUL_COLUMN: Column[Regime] = Column("matmuls", _matmuls)
ATTENTION_COLUMN: Column[Regime] = Column(
    "attention kernels", lambda regime: ", ".join(regime.attention_kernels or ()) or UNKNOWN
)
ADAM_COLUMN: Column[Regime] = Column("Adam", lambda regime: regime.adam or UNKNOWN)


class _Observed(NamedTuple):
    """A rank of a backend; None if no attempt of the backend was measured."""

    backend: str
    rank: Rank | None


def regimes(summary: Summary) -> Table:
    """One row a backend, unless its ranks or cells differ."""
    ranks = [
        _Observed(str(row.settings["backend"]), rank)
        for row in summary.rows
        if isinstance(row.measured, Sampled)
        for rank in row.measured.ranks
    ]
    seen = [rank.raw.regime for _, rank in ranks if rank]
    observed = {backend for backend, _ in ranks}
    backends = dict.fromkeys(str(row.settings["backend"]) for row in summary.rows)
    unknown = [_Observed(backend, None) for backend in backends if backend not in observed]
    columns = [
        Column[_Observed]("backend", lambda line: line.backend),
        *map(_of_rank, REGIME_COLUMNS),
        Column[_Observed](
            "sharded", lambda line: percent(line.rank.sharded_share) if line.rank else UNKNOWN, numeric=True
        ),
        *([_of_rank(OPTIONS_COLUMN)] if any(map(OPTIONS_COLUMN.value, seen)) else []),
        *map(_of_rank, DTYPE_COLUMNS),
        *([_of_rank(MATMUL_COLUMN)] if any(regime.matmul_shares for regime in seen) else []),
        *([_of_rank(ATTENTION_COLUMN)] if any(regime.attention_kernels for regime in seen) else []),
        *([_of_rank(ADAM_COLUMN)] if any(regime.adam for regime in seen) else []),
    ]
    return without_repeats(
        table_of(
            "Regime",
            [*ranks, *unknown],
            columns,
            notes=("Observed in the processes. sharded: share of the parameters that are split between ranks.",),
        )
    )


def _of_rank(column: Column[Regime]) -> Column[_Observed]:
    return Column(
        column.header,
        lambda line: column.value(line.rank.raw.regime) if line.rank else UNKNOWN,
        numeric=column.numeric,
    )
