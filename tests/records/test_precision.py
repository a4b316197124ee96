from typing import get_args

from bench.records.dtypes import DTYPES
from bench.records.precision import COMPUTES_IN, PRECISIONS, MixedPrecision


def test_each_precision_is_declared_and_its_dtype_is_known() -> None:
    literal, _ = get_args(MixedPrecision)
    assert list(PRECISIONS) == list(get_args(literal))
    assert {dtype.name for dtype in DTYPES.values()} >= set(COMPUTES_IN.values())
