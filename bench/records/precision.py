"""In which precision steps compute: the values of ``mixed_precision``."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

MixedPrecision = Annotated[
    Literal["bf16", "fp16", "no"],
    Field(
        description="``no``: fp32. ``fp16``, with scaled gradients, is for GPUs without bf16. The default is ``no`` on"
        " a device without bf16 instructions."
    ),
]


class Precision(NamedTuple):
    dtype: str
    """Of matrix products, by torch's name."""
    words: tuple[str, ...]
    """What else tables call it."""
    scales: bool = False
    """Whether gradients are scaled. A step whose gradients overflow then leaves the weights as they were."""


PRECISIONS: dict[MixedPrecision, Precision] = {
    "bf16": Precision("bfloat16", ("bfloat16", "bf16-mixed", "amp_bf16", "torch.bfloat16")),
    "fp16": Precision("float16", ("float16", "half", "16", "16-mixed", "amp_fp16", "torch.float16"), scales=True),
    "no": Precision("float32", ("fp32", "float32", "float", "32", "32-true", "full", "torch.float32")),
}
COMPUTES_IN: dict[str, str] = {name: one.dtype for name, one in PRECISIONS.items()}
"""The dtype of each."""
SCALED = [name for name, one in PRECISIONS.items() if one.scales]
