"""sgd over flat ranges, next to torch.optim.SGD."""

from __future__ import annotations

import math

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401


def control_of(scale: float) -> torch.Tensor:
    """The control block of ops/gradient/step_scalars.h."""
    return torch.tensor([0.0, 0.0, scale, 1.0], dtype=torch.float64)


def step(param: torch.Tensor, copy: torch.Tensor | None, grad: torch.Tensor, scale: float = 1.0) -> None:
    torch.ops.fastsft.sgd(param, copy, grad, control_of(scale), 3e-2, 0.1)


@pytest.mark.parametrize("size", [1, 63, 40_001])
def test_steps_equal_torch(size: int) -> None:
    ours, copy = torch.randn(size), torch.empty(size, dtype=torch.bfloat16)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.SGD([theirs], lr=3e-2, weight_decay=0.1)
    for _ in range(10):
        grad = torch.randn(size)
        theirs.grad = 0.5 * grad
        step(ours, copy, grad, 0.5)
        optimizer.step()
    torch.testing.assert_close(ours, theirs.data, rtol=1e-6, atol=1e-7)
    assert torch.equal(copy, reference.upper_half(ours))


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(scale: float) -> None:
    param, copy = torch.randn(50), torch.randn(50).bfloat16()
    before = param.clone(), copy.clone()
    step(param, copy, torch.randn(50), scale)
    assert torch.equal(param, before[0]) and torch.equal(copy, before[1])


def test_a_split_master_has_the_bits_of_a_whole_one() -> None:
    whole, grad = torch.randn(2500), torch.randn(2500).bfloat16()
    high, low = reference.upper_half(whole), (whole.view(torch.int32) & 0xFFFF).to(torch.int16)
    copy = torch.empty_like(high)
    for _ in range(3):
        step(whole, copy, grad)
        step(low, high, grad)
    assert torch.equal(high, copy)
    assert torch.equal(low, (whole.view(torch.int32) & 0xFFFF).to(torch.int16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grad": torch.zeros(3)}, "sgd: grad has shape"),
        ({"grad": torch.zeros(4).half()}, "sgd: grad is Half"),
        ({"param": torch.zeros(4, dtype=torch.int16)}, "sgd: a split master needs compute_copy"),
        ({"param": torch.zeros(4).double()}, "sgd: param is Double"),
    ],
)
def test_other_arguments_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    given = {"param": torch.zeros(4), "grad": torch.zeros(4), **change}
    with pytest.raises(ValueError, match=message):
        step(given["param"], None, given["grad"])
