"""The names of figures that others measured, as files give them. A name ends with its unit."""

from bench.records.figures import STATED
from bench.records.phases import STORED_PHASES

SECONDS, BYTES = ("s", "ms"), ("gb", "gib", "bytes")
"""Units at the end of a field's name. 1 GB is 1e9 bytes, 1 GiB is 2**30."""
TIMES = ("step_time", *STORED_PHASES)
MEMORIES = (*(figure.short.removesuffix("_bytes") for figure in STATED.values() if figure.kind == "bytes"), "peak")
"""`peak` is for a source that does not say which of the two it means; only its share of capacity is stored."""

FIGURES = (
    *(f"{name}_{unit}" for name in TIMES for unit in SECONDS),
    *(f"{name}_{unit}" for name in MEMORIES for unit in BYTES),
    "step_time_s_per_rank",
    "samples_per_s",
    "capacity_share",
)
RESULTS = frozenset(FIGURES).difference(f"capacity_{unit}" for unit in BYTES)
"""Those that an attempt without a measurement cannot have."""
