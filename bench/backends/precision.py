"""In which precision a cell holds its weights and computes. Pure."""

from bench.backends.registry import FAMILIES, backend_of
from bench.records.cell import HOLD_WHOLE_WEIGHTS, Cell


def autocasts(cell: Cell) -> bool:
    """Whether forward runs under autocast over fp32 weights, as accelerate runs it."""
    if cell.mixed_precision != "bf16" or backend_of(cell).family not in HOLD_WHOLE_WEIGHTS:
        return False
    return not cell.chooses_weights or cell.train.weights == "fp32"


def fp32_weights(cell: Cell) -> bool:
    """Whether the model is built in fp32, and the optimizer updates its weights or shards of them."""
    return cell.mixed_precision == "no" or FAMILIES[backend_of(cell).family].fp32_weights or autocasts(cell)
