"""The effective configuration, as it was observed while it ran: sharding, parameters and dtypes, by backend."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from bench.records.cell import Regime
from bench.report.rows import Summary
from bench.report.tables.table import Column, Number, Table, of_part, table_of, without_repeats
from bench.units import UNKNOWN, percent


def regimes(summary: Summary) -> Table:
    """One row a backend, unless its ranks or cells differ."""
    observed = [(str(row.settings["backend"]), rank.raw.regime) for row in summary.rows for rank in row.ranks]
    known = {backend for backend, _ in observed}
    backends = dict.fromkeys(str(row.settings["backend"]) for row in summary.rows)
    sharded = Number[Regime]("sharded", lambda regime: percent(regime.sharded_parameters / regime.parameters))
    columns = regime_columns([regime for _, regime in observed], sharded)
    table = table_of(
        "What actually ran",
        observed,
        [Column("backend", itemgetter(0)), *of_part(itemgetter(1), columns)],
        notes=("Observed in the processes. sharded: share of the parameters that are split between ranks.",),
    )
    unknown = [(backend, *[UNKNOWN] * len(columns)) for backend in backends if backend not in known]
    return without_repeats(replace(table, rows=(*table.rows, *unknown)))


def regime_columns(seen: Sequence[Regime], sharded: Column[Regime]) -> list[Column[Regime]]:
    """The columns of these configurations; without those that say nothing of any of them."""
    options = Column("options", _options)
    return [
        Column("type", lambda regime: regime.distributed_type),
        Column("sharding", lambda regime: regime.sharding),
        Number("world size", _world),
        Number("parameters", parameters_of),
        sharded,
        *([options] if any(map(_options, seen)) else []),
        Column("weights", _weights),
        Column("masters", lambda regime: regime.masters_dtype or "none"),
        Column("optimizer", _optimizer),
        Column("gradients summed in", lambda regime: regime.reduction_dtype or "none"),
        *([Column("matmuls", _matmuls)] if any(regime.matmul_shares for regime in seen) else []),
        *([Column("attention kernels", _kernels)] if any(regime.attention_kernels for regime in seen) else []),
        *(
            [Column[Regime]("Adam", lambda regime: regime.adam or UNKNOWN)]
            if any(regime.adam for regime in seen)
            else []
        ),
    ]


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


def _kernels(regime: Regime) -> str:
    return ", ".join(regime.attention_kernels or ()) or UNKNOWN
