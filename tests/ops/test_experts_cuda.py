"""Routing, grouping and grouped products of experts on the GPU."""

from __future__ import annotations

import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@every_dtype
@pytest.mark.parametrize("tokens,experts,chosen", [(0, 4, 2), (1, 1, 1), (300, 128, 8), (37, 1000, 32)])
@pytest.mark.parametrize("normalize", [False, True])
def test_routing(
    device: OpDevice, dtype: torch.dtype, tokens: int, experts: int, chosen: int, normalize: bool
) -> None:
    # Distinct by more than rounding, so that the choice is one
    logits = (torch.rand(tokens, experts).argsort(-1) / 16.0).to(dtype)
    chosen_experts = torch.zeros(tokens, chosen, dtype=torch.int32)
    weights = torch.zeros(tokens, chosen).to(dtype)
    _, weights, numbers, _ = device.agree("route_tokens", logits, weights, chosen_experts, normalize)
    exact = logits.double().requires_grad_()
    expected, places = reference.route(exact, chosen, normalize=normalize)
    assert_close(weights, expected)
    if dtype == torch.float32:
        assert torch.equal(numbers.long(), places)
    grad, into = torch.randn(tokens, chosen), torch.full_like(logits, torch.nan)
    device.agree("route_tokens_backward", grad, logits, numbers, into, normalize, kind="model")


@pytest.mark.parametrize("tokens,experts,chosen", [(0, 4, 2), (1, 1, 1), (999, 128, 8), (5000, 6, 2)])
def test_groups(device: OpDevice, tokens: int, experts: int, chosen: int) -> None:
    numbers = torch.rand(tokens, experts).topk(chosen).indices.int()
    offsets, pairs = torch.zeros(experts + 1, dtype=torch.int32), torch.zeros(numbers.numel()).int()
    made = device.agree("group_pairs", numbers, offsets, pairs, torch.zeros_like(numbers))
    order = torch.sort(numbers.flatten(), stable=True).indices
    assert torch.equal(made[2].long(), order)
    counts = torch.bincount(numbers.flatten(), minlength=experts)
    assert torch.equal(made[1].long(), torch.cat([torch.zeros(1).long(), counts.cumsum(0)]))


@every_dtype
@pytest.mark.parametrize("sizes", [[0, 3, 1], [5], [0, 0], [200, 0, 130, 7, 128]], ids=str)
@pytest.mark.parametrize("inputs,outputs", [(1, 1), (136, 264), (72, 17)])
def test_grouped_products(
    device: OpDevice, dtype: torch.dtype, sizes: list[int], inputs: int, outputs: int
) -> None:
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    x, weights = torch.randn(sum(sizes), inputs).to(dtype), torch.randn(len(sizes), outputs, inputs).to(dtype)
    grad = torch.randn(sum(sizes), outputs).to(dtype)
    parts = zip(x.double().split(sizes), weights.double(), strict=True)
    expected = torch.cat([part @ weight.T for part, weight in parts])
    out, grad_x = torch.full_like(grad, torch.nan), torch.full_like(x, torch.nan)
    assert_close(device.agree("grouped_gemm", x, weights, offsets, out, True)[3], expected)
    parts = zip(grad.double().split(sizes), weights.double(), strict=True)
    expected = torch.cat([part @ weight for part, weight in parts])
    assert_close(device.agree("grouped_gemm", grad, weights, offsets, grad_x, False)[3], expected)
    pairs = zip(grad.double().split(sizes), x.double().split(sizes), strict=True)
    gradient = torch.stack([one.T @ other for one, other in pairs])
    for beta in (0.0, 1.0):
        held = torch.randn(weights.shape) if beta else torch.full(weights.shape, torch.nan)
        made = device.agree("grouped_weight_gradient", grad, x, offsets, held, beta)[3]
        assert_close(made, gradient + (held.double() if beta else 0))
