"""The initial weights of the policy. Each value depends only on the seed, the parameter's name and its place in it.

So a rank can draw the part that it keeps, where it keeps it: parts of any size, on any device, are the same bit for
bit. A generator of torch gives that neither for parts nor across devices.
"""

import hashlib

import torch
from torch import Tensor, nn

from bench.model.backbone import Linear, RMSNorm
from bench.model.expert import Modulation

STD = 0.02


def constants(model: nn.Module) -> dict[str, float]:
    """The initial values of those parameters, by name, that are the same throughout. The others are drawn."""
    found = {
        f"{path}.{name}".removeprefix("."): _constant(owner, name)
        for path, owner in model.named_modules()
        for name, _ in owner.named_parameters(recurse=False)
    }
    return {name: value for name, value in found.items() if value is not None}


def _constant(owner: nn.Module, name: str) -> float | None:
    match owner:
        case nn.LayerNorm():
            return float(name == "weight")
        case RMSNorm() | Modulation():
            return 0.0
        case Linear() if name == "bias":
            return 0.0
    return None


@torch.no_grad()
def draw(key: str, start: int, out: Tensor) -> None:
    """Write the values of a flattened parameter from index ``start`` on into ``out``, rounded to its dtype.

    They are uniform, with mean zero and the standard deviation `STD`.

    Args:
        key: what tells this parameter, and this seed, from others.
        out: one-dimensional.
    """
    first, second = _keys(key)
    size = 2**16 if out.device.type == "cpu" else 2**24  # in a core's cache; or enough for all cores of a GPU
    for part_start in range(0, len(out), size):
        part = out[part_start : part_start + size]
        bits = _hashed(start + part_start, len(part), first, second, out.device)
        part.copy_(bits.float().mul_(STD * 3**0.5 * 2.0**-31))


def _keys(key: str) -> tuple[int, int]:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def _hashed(start: int, number: int, first: int, second: int, device: torch.device) -> Tensor:
    """32 evenly distributed bits for each index from ``start`` on.

    Chris Wellons' triple32 (github.com/skeeto/hash-prospector), with a second key between its rounds: otherwise two
    parameters would be the same sequence, shifted.
    """
    x = torch.arange(number, dtype=torch.int32, device=device).add_(_int32(start + first))
    _fold(x, 17)
    x.mul_(_int32(0xED5AD4BB))
    _fold(x, 11)
    x.mul_(_int32(0xAC4C1B51)).add_(second)
    _fold(x, 15)
    x.mul_(_int32(0x31848BAB))
    _fold(x, 14)
    return x


def _fold(x: Tensor, by: int) -> None:
    """``x ^= x >> by`` for unsigned ``x``; torch's shift keeps the sign."""
    x.bitwise_xor_((x >> by).bitwise_and_((1 << (32 - by)) - 1))


def _int32(number: int) -> int:
    """The signed number with the same lowest 32 bits."""
    return (number + 2**31) % 2**32 - 2**31
