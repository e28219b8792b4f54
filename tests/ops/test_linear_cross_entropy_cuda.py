"""Head and loss on the GPU: several chunks, vocabularies that are no multiple of an access, smoothing."""

from __future__ import annotations

import math

import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens,vocab,hidden", [(1, 2, 8), (5, 33, 16), (300, 1001, 64), (520, 32000, 128)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_loss_and_gradients(
    device: OpDevice, dtype: torch.dtype, smoothing: float, tokens: int, vocab: int, hidden: int, beta: float
) -> None:
    rows, weight = torch.randn(tokens, hidden).to(dtype), (torch.randn(vocab, hidden) / 8).to(dtype)
    targets, weights = torch.randint(0, vocab, (tokens,)), torch.rand(tokens)
    held, loss = torch.randn(vocab, hidden), torch.ones(1, dtype=torch.float64)
    exact, exact_weight = rows.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.linear_cross_entropy(
        exact, exact_weight, targets, weights.double(), smoothing, logits_dtype=dtype
    )
    expected.backward()
    made = device.agree(
        "linear_cross_entropy",
        rows,
        weight,
        targets,
        weights,
        smoothing,
        loss,
        torch.zeros_like(rows),
        held,
        beta,
        sums_within=1e-5,  # as next to float64 below
        rounded=dtype,
    )
    assert exact.grad is not None and exact_weight.grad is not None
    assert made[5].item() == pytest.approx(1 + expected.item(), rel=1e-5)
    assert_close(made[6], exact.grad)
    kind = "op" if dtype == torch.float32 else "model"
    assert_close(made[7].to(dtype), exact_weight.grad + beta * held.double(), kind)


def test_many_chunks(device: OpDevice) -> None:
    rows, weight = torch.randn(2100, 32).bfloat16(), torch.randn(151936, 32).bfloat16() / 8
    targets, weights = torch.randint(0, 151936, (2100,)), torch.rand(2100)
    loss = torch.zeros(1, dtype=torch.float64, device=device.place)
    there = [tensor.to(device.place) for tensor in (rows, weight, targets, weights)]
    device.ops.linear_cross_entropy(*there, 0.0, loss, None, None, 0.0)
    logits = (there[0].float() @ there[1].float().T).bfloat16()
    expected = torch.nn.functional.cross_entropy(logits.float(), there[2], reduction="none")
    assert loss.item() == pytest.approx((expected.double() * there[3]).sum().item(), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_no_token(device: OpDevice, beta: float) -> None:
    loss, held = torch.ones(1, dtype=torch.float64), torch.randn(9, 4)
    made = device.agree(
        "linear_cross_entropy", torch.empty(0, 4), torch.randn(9, 4), torch.empty(0, dtype=torch.int64),
        torch.empty(0), 0.0, loss, torch.empty(0, 4), held, beta,
    )  # fmt: skip
    assert made[5].item() == 1 and torch.equal(made[7], beta * held)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_give_a_broken_loss(device: OpDevice, bad: float) -> None:
    rows, weight = torch.randn(3, 8, device=device.place), torch.randn(50, 8, device=device.place)
    rows[1, 2] = bad
    loss = torch.zeros(1, dtype=torch.float64, device=device.place)
    targets = torch.zeros(3, dtype=torch.int64, device=device.place)
    weights = torch.ones(3, device=device.place)
    device.ops.linear_cross_entropy(rows, weight, targets, weights, 0.0, loss, None, None, 0.0)
    assert not math.isfinite(loss.item())
