"""adamw with bfloat16 moments and with a split master."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from ops.test_optimizer_ops import OPTIONS, control_of

SEED = 0x123456789ABCDEF


def update(
    param: torch.Tensor,
    copy: torch.Tensor | None,
    grad: torch.Tensor,
    moments: list[torch.Tensor],
    number: int = 3,
    first: int = 0,
    scale: float = 0.5,
) -> None:
    control = control_of(scale=scale, step=number)
    torch.ops.fastsft.adamw(param, copy, grad, *moments, control, *OPTIONS.values(), SEED, first)


def moments_of(size: int) -> list[torch.Tensor]:
    return [torch.randn(size).bfloat16(), torch.rand(size).bfloat16()]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def test_the_generator_is_philox() -> None:
    """Known answers of the authors' Random123 library."""
    full = 2**32 - 1
    expected = {0: "6627e8d5 e169c58d bc57ac4c 9b00dbd8", full: "408f276d 41c83b0e a20bc7c6 6d5451fd"}
    for word, text in expected.items():
        made = reference.philox(np.full(4, word, dtype=np.uint64), word << 32 | word)
        assert [f"{int(value):08x}" for value in made] == text.split()


@pytest.mark.parametrize("size, first", [(1, 0), (2500, 0), (2500, 7), (40001, 2**34 + 3)])
def test_bfloat16_moments_are_the_float32_ones_rounded_by_philox(size: int, first: int) -> None:
    grad, narrow, params = torch.randn(size), moments_of(size), [torch.randn(size)]
    wide = [moment.float() for moment in narrow]
    params.append(params[0].clone())
    update(params[0], None, grad, wide)
    update(params[1], None, grad, narrow, first=first)
    assert torch.equal(*params)
    words = reference.element_words(SEED, 3, first, size)
    for moment, exact, shift in zip(narrow, wide, (0, 16), strict=True):
        random = (words >> np.uint64(shift)) & np.uint64(0xFFFF)
        assert torch.equal(moment, reference.round_stochastically(exact, random))


def test_rounding_does_not_depend_on_how_ranges_are_cut() -> None:
    size, cuts = 5000, [0, 3, 1027, 3000, 5000]
    grad, whole = torch.randn(size), moments_of(size)
    parts = [moment.clone() for moment in whole]
    params = [torch.zeros(size), torch.zeros(size)]
    update(params[0], None, grad, whole, first=11)
    for begin, end in pairwise(cuts):
        part = slice(begin, end)
        update(params[1][part], None, grad[part], [m[part] for m in parts], first=11 + begin)
    assert all(torch.equal(a, b) for a, b in zip([params[0], *whole], [params[1], *parts], strict=True))


def test_the_mean_of_rounding_is_the_value() -> None:
    """A moment far below half a bfloat16 step would never move if it were rounded to nearest."""
    size = 200_000
    moments = [torch.ones(size).bfloat16(), torch.ones(size).bfloat16()]
    update(torch.zeros(size), None, torch.full((size,), 2.02), moments, scale=1.0)
    for moment, exact in zip(moments, (1 + 0.1 * 1.02, 0.95 + 0.05 * 2.02**2), strict=True):
        assert set(moment.tolist()) <= {exact // 2**-7 * 2**-7, (exact // 2**-7 + 1) * 2**-7}
        deviation = 2**-7 / 2 / math.sqrt(size)
        assert moment.double().mean().item() == pytest.approx(exact, abs=5 * deviation)


def test_a_split_master_has_the_bits_of_the_whole() -> None:
    size = 40_001
    whole = torch.randn(size)
    whole[:1000] = (bits(whole[:1000]) & ~0xFFFF | 0x8000).view(torch.float32)  # ties
    high, low = reference.upper_half(whole), (bits(whole) & 0xFFFF).to(torch.int16)
    copy, states = torch.zeros(size).bfloat16(), [moments_of(size) for _ in range(2)]
    states[1] = [moment.clone() for moment in states[0]]
    for number in range(1, 6):
        grad = torch.randn(size) * (number > 1)
        update(whole, copy, grad, states[0], number)
        update(low, high, grad, states[1], number)
        assert torch.equal(bits(whole), (bits(high).int() << 16) + low.int())
        assert torch.equal(bits(high), bits(copy)) and torch.equal(copy, reference.upper_half(whole))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(scale: float) -> None:
    low, high, grad = torch.arange(-50, 50, dtype=torch.int16), torch.randn(100).bfloat16(), torch.randn(100)
    tensors = [low, high, *moments_of(100)]
    before = [tensor.clone() for tensor in tensors]
    update(low, high, grad, tensors[2:], scale=scale)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"param": torch.zeros(8, dtype=torch.int16)}, "a split master needs compute_copy"),
        ({"param": torch.zeros(8).double()}, "param is Double, expected Float, or Short"),
        ({"moments": [torch.zeros(8).bfloat16(), torch.zeros(8)]}, "exp_avg_sq is Float, expected BFloat16"),
        ({"moments": [torch.zeros(8).half(), torch.zeros(8).half()]}, "exp_avg is Half"),
        ({"first": -1}, "first_element is -1"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str) -> None:
    arguments = {"param": torch.zeros(8), "copy": None, "grad": torch.zeros(8), "moments": moments_of(8)}
    with pytest.raises(ValueError, match=message):
        update(**arguments | change)
