"""torch's dtypes, by their names in Python and in C++."""

from typing import NamedTuple


class Dtype(NamedTuple):
    name: str
    item_bytes: int


DTYPES = {
    "Double": Dtype("float64", 8), "Float": Dtype("float32", 4), "BFloat16": Dtype("bfloat16", 2),
    "Half": Dtype("float16", 2), "Long": Dtype("int64", 8), "Int": Dtype("int32", 4), "Short": Dtype("int16", 2),
    "Char": Dtype("int8", 1), "Byte": Dtype("uint8", 1), "Bool": Dtype("bool", 1),
}  # fmt: skip
"""By the names that the flight recorder and the profiler write, C++'s."""
