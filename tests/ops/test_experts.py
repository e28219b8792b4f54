"""Routing, grouping and grouped products of experts against plain torch and its autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import reference
from fastsft import _C  # noqa: F401
from tolerances import TOLERANCES, assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUTERS = [(0, 4, 2), (1, 1, 1), (7, 5, 5), (300, 16, 2), (130, 128, 8)]
both = pytest.mark.parametrize("normalize", [False, True])


def routed(logits: Tensor, chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    weights = torch.full((len(logits), chosen), torch.nan, dtype=logits.dtype)
    experts = torch.full((len(logits), chosen), -1, dtype=torch.int32)
    torch.ops.fastsft.route_tokens(logits, weights, experts, normalize)
    return weights, experts


def grouped(experts: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    offsets = torch.full((count + 1,), -1, dtype=torch.int32)
    pairs, rows = torch.full((experts.numel(),), -1, dtype=torch.int32), torch.full_like(experts, -1)
    torch.ops.fastsft.group_pairs(experts, offsets, pairs, rows)
    return offsets, pairs, rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,experts,chosen", ROUTERS)
@both
def test_routing(dtype: torch.dtype, tokens: int, experts: int, chosen: int, normalize: bool) -> None:
    logits = (3 * torch.randn(tokens, experts)).to(dtype)
    weights, numbers = routed(logits, chosen, normalize)
    exact = logits.double().requires_grad_()
    expected, _ = reference.route(exact, chosen, normalize=normalize)
    assert_close(weights, expected)  # in falling order, so equal logits may stand for each other
    probabilities = logits.double().softmax(-1)
    picked = probabilities.gather(1, numbers.long())
    assert_close(picked.float(), expected.double() * (picked.sum(-1, keepdim=True) if normalize else 1))
    assert all(len(set(row)) == chosen for row in numbers.tolist())
    # The gradient of the experts that were chosen here
    grad, made = torch.randn(tokens, chosen), torch.full_like(logits, torch.nan)
    again = exact.softmax(-1).gather(1, numbers.long())
    again = again / again.sum(-1, keepdim=True) if normalize else again
    (wanted,) = torch.autograd.grad(again, exact, grad.double())
    torch.ops.fastsft.route_tokens_backward(grad, logits, numbers, made, normalize)
    size = wanted.norm().item()
    if chosen == experts == 1 or size < 1e-9:  # one probability is 1 for all logits
        assert made.abs().max().item() < 1e-5 if tokens else True
    else:
        assert_close(made, wanted)


def test_equal_logits_choose_the_first_experts_as_they_fall() -> None:
    weights, experts = routed(torch.zeros(2, 6), 3, True)
    assert experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("normalize", [False, True])
def test_a_logit_that_is_no_number_gives_weights_that_are_none(normalize: bool) -> None:
    logits = torch.zeros(2, 4)
    logits[0, 2] = torch.nan
    weights, experts = routed(logits, 2, normalize)
    assert weights[0].isnan().all() and weights[1].isfinite().all()
    assert experts.tolist() == [[0, 1]] * 2


@pytest.mark.parametrize("tokens,experts,chosen", ROUTERS)
def test_groups(tokens: int, experts: int, chosen: int) -> None:
    numbers = torch.rand(tokens, experts).topk(chosen).indices.int()
    offsets, pairs, rows = grouped(numbers, experts)
    flat = numbers.flatten()
    order = torch.sort(flat, stable=True).indices
    assert torch.equal(pairs.long(), order)
    assert torch.equal(rows.flatten()[order].long(), torch.arange(len(order)))
    assert torch.equal(offsets.diff().long(), torch.bincount(flat, minlength=experts))
    assert offsets[0] == 0


def test_an_expert_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="expert 4 of pair 1 is not below 4"):
        grouped(torch.tensor([[0, 4]], dtype=torch.int32), 4)
    with pytest.raises(ValueError, match="5 chosen experts a token, expected 1 to 4"):
        routed(torch.zeros(1, 4), 5, False)
    with pytest.raises(ValueError, match="offsets must rise from 0 to 3, got 0 and 2 for group 0"):
        torch.ops.fastsft.grouped_gemm(
            torch.ones(3, 2), torch.ones(1, 2, 2), torch.tensor([0, 2], dtype=torch.int32),
            torch.ones(3, 2), True,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_go_to_experts_and_back(dtype: torch.dtype, width: int, weighted: bool) -> None:
    numbers = torch.rand(60, 9).topk(3).indices.int()
    _, pairs, rows = grouped(numbers, 9)
    x, addend = torch.randn(60, width).to(dtype), torch.randn(60, width).to(dtype)
    out = torch.full((180, width), torch.nan, dtype=dtype)
    torch.ops.fastsft.gather_rows(x, pairs, out)
    assert torch.equal(out, x.repeat_interleave(3, 0)[pairs.long()])
    weights = torch.rand(60, 3).to(dtype) if weighted else None
    made = torch.full_like(x, torch.nan)
    torch.ops.fastsft.combine_rows(out, rows, weights, addend, made)
    factor = 3 if weights is None else weights.double().sum(-1, keepdim=True)
    assert_close(made, addend.double() + factor * x.double())
    torch.ops.fastsft.combine_rows(out, rows, weights, addend, addend)  # in place
    assert torch.equal(made, addend)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,chosen,width", [(0, 2, 4), (1, 1, 1), (50, 3, 33), (64, 2, 128)])
def test_weighted_swiglu_backward(dtype: torch.dtype, tokens: int, chosen: int, width: int) -> None:
    pairs = torch.randperm(tokens * chosen).int()
    gate_up = (3 * torch.randn(tokens * chosen, 2 * width)).to(dtype)
    weights, grad = torch.rand(tokens, chosen).to(dtype), torch.randn(tokens * chosen, width).to(dtype)
    exact, exact_weights = gate_up.double().requires_grad_(), weights.double().requires_grad_()
    out = exact_weights.flatten()[pairs.long(), None] * reference.swiglu(exact)
    out.backward(grad.double())
    grad_weights = torch.full((tokens, chosen), torch.nan)
    torch.ops.fastsft.expert_swiglu_backward(grad, gate_up, weights, pairs, grad_weights)
    assert exact.grad is not None and exact_weights.grad is not None
    assert_close(grad, out)
    assert_close(gate_up, exact.grad)
    assert_close(grad_weights.to(dtype), exact_weights.grad)


SIZES = [[0, 3, 1], [5], [0, 0], [40, 0, 130, 7]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("inputs,outputs", [(1, 1), (24, 40), (72, 17)])
def test_grouped_products(dtype: torch.dtype, sizes: list[int], inputs: int, outputs: int) -> None:
    total, experts = sum(sizes), len(sizes)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    x, weights = torch.randn(total, inputs).to(dtype), torch.randn(experts, outputs, inputs).to(dtype)
    grad = torch.randn(total, outputs).to(dtype)
    exact, exact_weights = x.double().requires_grad_(), weights.double().requires_grad_()
    expected = torch.cat(
        [part @ weight.T for part, weight in zip(exact.split(sizes), exact_weights, strict=True)]
    )
    expected.backward(grad.double())
    assert exact.grad is not None and exact_weights.grad is not None
    out, grad_x = torch.full_like(grad, torch.nan), torch.full_like(x, torch.nan)
    torch.ops.fastsft.grouped_gemm(x, weights, offsets, out, True)
    torch.ops.fastsft.grouped_gemm(grad, weights, offsets, grad_x, False)
    assert_close(out, expected)
    assert_close(grad_x, exact.grad)
    for beta in (0.0, 1.0):
        held = torch.randn(weights.shape) if beta else torch.full(weights.shape, torch.nan)
        wanted = exact_weights.grad + (held.double() if beta else 0)
        torch.ops.fastsft.grouped_weight_gradient(grad, x, offsets, held, beta)
        assert_close(held, wanted)
    if dtype == torch.bfloat16:
        narrow = torch.randn(weights.shape).bfloat16()
        wanted = exact_weights.grad + narrow.double()
        torch.ops.fastsft.grouped_weight_gradient(grad, x, offsets, narrow, 1.0)
        assert_close(narrow, wanted)


def test_a_mixture_by_its_ops() -> None:
    """All of them in a row, with the gradient of every parameter by autograd of the plain formula."""
    tokens, hidden, inner, experts, chosen = 90, 12, 10, 6, 2
    shapes = ((tokens, hidden), (experts, hidden), (experts, 2 * inner, hidden), (experts, hidden, inner))
    x, router, gate_up, down = (torch.randn(shape) for shape in shapes)
    exact = [each.double().requires_grad_() for each in (x, router, gate_up, down)]
    expected = reference.mixture(exact[0], exact[1], list(exact[2]), list(exact[3]), chosen, normalize=True)
    grad = torch.randn(tokens, hidden)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    ops = torch.ops.fastsft
    weights, numbers = routed(x @ router.T, chosen, True)
    offsets, pairs, rows = grouped(numbers, experts)
    perm, mid = torch.empty(tokens * chosen, hidden), torch.empty(tokens * chosen, 2 * inner)
    act, out = torch.empty(tokens * chosen, inner), torch.empty(tokens, hidden)
    ops.gather_rows(x, pairs, perm)
    ops.grouped_gemm(perm, gate_up, offsets, mid, True)
    ops.swiglu(mid, act)
    ops.grouped_gemm(act, down, offsets, perm, True)
    ops.combine_rows(perm, rows, weights, torch.zeros_like(out), out)
    assert_close(out, expected)
    grad_weights, grad_logits = torch.empty(tokens, chosen), torch.empty(tokens, experts)
    grad_gate_up, grad_down, grad_x = (torch.empty_like(each) for each in (gate_up, down, x))
    ops.gather_rows(grad, pairs, perm)
    ops.grouped_gemm(perm, down, offsets, act, False)
    ops.expert_swiglu_backward(act, mid, weights, pairs, grad_weights)
    ops.grouped_weight_gradient(perm, act, offsets, grad_down, 0.0)
    ops.gather_rows(x, pairs, perm)
    ops.grouped_weight_gradient(mid, perm, offsets, grad_gate_up, 0.0)
    ops.grouped_gemm(mid, gate_up, offsets, perm, False)
    ops.route_tokens_backward(grad_weights, x @ router.T, numbers, grad_logits, True)
    ops.combine_rows(perm, rows, None, grad_logits @ router, grad_x)
    for made, one in zip((grad_x, grad_logits.T @ x, grad_gate_up, grad_down), wanted, strict=True):
        assert (made.double() - one).norm() <= TOLERANCES[torch.float32].model * one.norm()
