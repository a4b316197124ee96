"""Initial weights: parts equal the whole, on any grid of blocks, and no two parameters are alike."""

import pytest
import torch
from torch import Tensor

from bench.model import weights
from bench.model.workload import Pi07

N = 200_000


def drawn(key: str = "7/a", start: int = 0, number: int = N, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.full((number,), torch.nan, dtype=dtype)
    weights.draw(key, start, out)
    return out


def correlation(first: Tensor, second: Tensor) -> float:
    """In standard deviations of what independent values would show."""
    return float((first * second).mean() / (first.std() * second.std()) * len(first) ** 0.5)


@pytest.mark.parametrize("part", [slice(0, 1), slice(17, 70_000), slice(65_536, 65_537), slice(131_071, N)])
def test_a_part_is_drawn_as_in_the_whole(part: slice) -> None:
    assert torch.equal(drawn(start=part.start, number=part.stop - part.start), drawn()[part])


def test_values_are_uniform_and_independent() -> None:
    values = drawn(number=2**22)
    assert values.mean() == pytest.approx(0, abs=4 * weights.STD / 2**11)
    assert values.std() == pytest.approx(weights.STD, rel=2e-3)
    assert values.abs().max() == pytest.approx(weights.STD * 3**0.5, rel=1e-4)
    for lag in (1, 2, 64, 2560, 65_536):
        assert abs(correlation(values[:-lag], values[lag:])) < 5
    assert abs(correlation(values, drawn("7/b", number=2**22))) < 5


def test_no_two_parameters_or_seeds_are_alike_even_when_shifted() -> None:
    own = drawn()
    for key in ("7/b", "8/a"):
        other = drawn(key)
        first, second = weights._keys("7/a")[0], weights._keys(key)[0]
        assert abs(correlation(own, other)) < 5
        shifted = drawn(key, start=(first - second) % 2**32)  # where the first round has the same inputs
        assert abs(correlation(own, shifted)) < 5


def test_bits_are_those_of_the_hash_in_whole_numbers() -> None:
    """Integers are exact on every device, and so is the product of each with one constant."""
    for start, first, second in ((0, 1, 2), (2**31 - 2, -5, 2**31 - 1), (2**32 - 2, 1, -2)):
        bits = weights._hashed(start, 4, first, second, torch.device("cpu"))
        assert [bit % 2**32 for bit in bits.tolist()] == [hashed(start + i, first, second) for i in range(4)]
    assert drawn(dtype=torch.bfloat16).equal(drawn().bfloat16())


def hashed(index: int, first: int, second: int) -> int:
    x = (index + first) % 2**32
    x = (x ^ x >> 17) * 0xED5AD4BB % 2**32
    x = ((x ^ x >> 11) * 0xAC4C1B51 + second) % 2**32
    x = (x ^ x >> 15) * 0x31848BAB % 2**32
    return x ^ x >> 14


@pytest.mark.parametrize("seed", [0, 1000])
def test_build_draws_by_name(seed: int) -> None:
    torch.manual_seed(seed)
    task = Pi07(Pi07.Config(n_layers=1, vision_layers=1))
    parameters = {name: one.detach() for name, one in task.build().named_parameters()}
    for name, parameter in parameters.items():
        middle = parameter.numel() // 2
        part = torch.empty(parameter.numel() - middle)
        task.draw(name, seed, middle, part)
        assert torch.equal(part, parameter.view(-1)[middle:])
    ones = {name for name, one in parameters.items() if one.eq(1).all()}
    zeros = {name for name, one in parameters.items() if one.eq(0).all()}
    assert ones == {f"vision.{norm}.weight" for norm in ("layers.0.attention_norm", "layers.0.mlp_norm", "norm")}
    assert all("norm" in name or name.endswith("bias") for name in zeros)
    for name, parameter in parameters.items():
        if name not in ones | zeros:
            assert parameter.std().item() == pytest.approx(weights.STD, rel=0.1), name
