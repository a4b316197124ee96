"""What theory says beside what was measured: memory of model state, bytes that ranks send, and use of the device."""

from collections.abc import Callable

from bench.report.communication import Sent, communication
from bench.report.formulas import State
from bench.report.naming import cell_name, row_name
from bench.report.rows import Summary
from bench.report.tables.regimes import parameters_of
from bench.report.tables.table import Column, Number, Table, table_of
from bench.report.theory import Theory, Utilization, theory_of, utilization
from bench.units import UNKNOWN, in_table, percent, rate, size


def theory(summary: Summary) -> Table:
    """One row a cell: the predicted state, the measured peak, the rest and recomputation.

    Empty where the effective configuration of no cell is known.
    """
    lines = [theory_of(cell) for cell in summary.cells]
    cpu = any(machine.hardware.device == "cpu" for machine in summary.machines)
    regimes = [line.regime for line in lines if line.regime]
    more = dict.fromkeys(note for line in lines if line.state for note in line.state.notes)

    def of_state(header: str, part: Callable[[State], float]) -> Column[Theory]:
        return Number(header, lambda line: size(part(line.state)) if line.state else UNKNOWN)

    columns: list[Column[Theory]] = [
        Column("cell", lambda line: cell_name(summary, line.cell.rows[0])),
        Number("parameters", lambda line: parameters_of(line.regime) if line.regime else UNKNOWN),
        of_state("weights", lambda state: state.weights),
        of_state("gradients", lambda state: state.gradients),
        of_state("buckets", lambda state: state.buckets),
        of_state("masters", lambda state: state.masters),
        of_state("Adam", lambda state: state.moments),
        of_state("predicted", lambda state: state.total),
        Number("measured", lambda line: size(line.peak and line.peak.allocated)),
        Number("rest", lambda line: size(line.rest_bytes)),
        Number("recomputed", lambda line: percent(line.recomputed_share)),
        Column("from batch", lambda line: " and ".join(map(str, line.peak.batches)) if line.peak else UNKNOWN),
    ]
    return table_of(
        "Theory and measurement",
        lines if regimes else (),
        columns,
        notes=(
            "weights to predicted: bytes of model state on each rank after arXiv:1910.02054; n/a for"
            " optimizers other than AdamW."
            + "".join(f" {note}" for note in more)
            + " measured: peak allocated without the part that grows with the batch, extrapolated from two"
            " batches; with only one batch, its full peak. buckets: DDP's copy of the gradients. rest: memory that a"
            " step holds for a short time, such as gathered units and fp32 gradients in the optimizer step."
            + (" On a CPU, measured is the growth of the data segment, which includes libraries." if cpu else ""),
            "recomputed: share of all operations that gradient checkpointing repeats, as the workload states them.",
        ),
    )


def communication_table(summary: Summary) -> Table:
    """What ranks send by formula, and as the flight recorder saw it: one row for each cell and operation, of the best
    recorded batch."""
    columns: list[Column[Sent]] = [
        Column("attempt", lambda sent: row_name(summary, sent.row)),
        Column("operation", lambda sent: sent.operation.replace("_", "-")),
        Number("calls", lambda sent: in_table(sent.calls, "count")),
        Number("recorded", lambda sent: size(sent.recorded_bytes)),
        Number("formula", lambda sent: ("at most " if sent.upper_bound else "") + size(sent.formula_bytes)),
        Number("recorded / formula", lambda sent: UNKNOWN if sent.ratio is None else f"{sent.ratio:.3f}"),
    ]
    return table_of(
        "Bytes sent in a step",
        [sent for cell in summary.cells for sent in communication(cell)],
        columns,
        notes=(
            "By each rank, with ring algorithms, at the recorded batch with the highest throughput. recorded: from the"
            " payloads of all collectives in the last step of the phase window, by torch's flight recorder; n/a without"
            " a phase window, and where the recorder lost a part of it. formula: after arXiv:1910.02054 and"
            " arXiv:2304.11277, as torch 2.13, accelerate 1.15 and DeepSpeed 0.19 apply it; n/a for your own accelerate"
            " config. gloo has no reduce-scatter: torch runs an all-reduce, which sends twice as much. Recorded"
            " operations without a formula are left out below 1 % of the payload, such as the gather of the losses.",
        ),
    )


def utilization_table(summary: Summary) -> Table:
    """Operations and tokens a second, MFU and HFU: one row for each measured batch of a workload that states operations
    or tokens; the short attempts of searches are left out."""

    def tera(header: str, part: Callable[[Utilization], float | None]) -> Column[Utilization]:
        return Number(header, lambda used: UNKNOWN if (flops := part(used)) is None else f"{flops / 1e12:.3g}")

    lines = [used for cell in summary.cells for row in cell.rows if not row.short and (used := utilization(cell, row))]
    padded = any(used.padding_share is not None for used in lines)
    columns: list[Column[Utilization]] = [
        Column("attempt", lambda used: row_name(summary, used.row)),
        Number("tokens/s", lambda used: rate(used.tokens_per_s_global)),
        *([Number("padding", lambda used: percent(used.padding_share))] if padded else []),
        tera("model TFLOP/s", lambda used: used.model_flops_per_s_per_rank),
        tera("with recomputation", lambda used: used.hardware_flops_per_s_per_rank),
        tera("peak TFLOP/s", lambda used: used.peak_flops_per_s),
        Number("MFU", lambda used: percent(used.mfu)),
        Number("HFU", lambda used: percent(used.hfu)),
    ]
    return table_of(
        "Utilization",
        lines,
        columns,
        notes=(
            "tokens/s of all ranks; TFLOP/s of one."
            + (" padding: its share of all places, which no other figure counts." if padded else "")
            + " MFU counts the matrix products that a step needs, HFU also those"
            " that gradient checkpointing repeats, both as the workload states them, over the dense peak rate on the"
            " device's datasheet (arXiv:2204.02311, appendix B). n/a: the peak of this device is not known, as for any"
            " CPU.",
        ),
    )
