"""rope, swiglu, embedding, bias and qk_norm on the GPU: both dtypes, odd and even sizes, no rows."""

from __future__ import annotations

import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES)


@both_dtypes
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    "tokens,heads,extra,dim", [(0, 2, 0, 8), (1, 1, 5, 2), (70, 3, 7, 10), (300, 40, 128, 128)]
)
def test_rope(
    device: OpDevice, dtype: torch.dtype, inverse: bool, tokens: int, heads: int, extra: int, dim: int
) -> None:
    x = torch.randn(tokens, heads * dim + extra).to(dtype)
    cos, sin = reference.rope_tables(torch.arange(64), reference.rope_inverse_frequencies(dim))
    positions = torch.randint(0, 64, (tokens,), dtype=torch.int32)
    made = device.agree("rope", x, cos, sin, positions, heads, inverse)[0]
    turned = x[:, : heads * dim].double().view(tokens, heads, dim)
    at = positions.long()
    expected = reference.rope(turned, cos[at].double(), (-sin if inverse else sin)[at].double())
    assert_close(made[:, : heads * dim], expected.flatten(1))
    assert torch.equal(made[:, heads * dim :], x[:, heads * dim :])


@both_dtypes
@pytest.mark.parametrize("tokens,width", [(0, 8), (1, 1), (33, 7), (200, 1376), (64, 11008)])
@pytest.mark.parametrize("gelu", [False, True])
def test_swiglu(device: OpDevice, dtype: torch.dtype, tokens: int, width: int, gelu: bool) -> None:
    gate_up, grad_out = torch.randn(tokens, 2 * width).to(dtype), torch.randn(tokens, width).to(dtype)
    exact = gate_up.double().requires_grad_()
    expected = (reference.geglu if gelu else reference.swiglu)(exact)
    expected.backward(grad_out.double())
    assert_close(device.agree("swiglu", gate_up, torch.zeros_like(grad_out), gelu)[1], expected)
    assert exact.grad is not None
    apart, given = torch.zeros_like(gate_up), (grad_out, gate_up)
    assert_close(device.agree("swiglu_backward", *given, apart, False, gelu)[2], exact.grad)
    in_place = device.agree("swiglu_backward", *given, gate_up, False, gelu)[1]
    assert_close(in_place, exact.grad, name="in place")
    remade, _, grad, *_ = device.agree("swiglu_backward", *given, apart, True, gelu)
    assert_close(grad, exact.grad, name="remaking")
    assert torch.equal(remade, device.agree("swiglu", gate_up, torch.zeros_like(grad_out), gelu)[1])


@both_dtypes
@pytest.mark.parametrize("tokens,vocab,hidden", [(0, 5, 8), (1, 1, 1), (500, 7, 33), (999, 400, 1088)])
def test_embedding(device: OpDevice, dtype: torch.dtype, tokens: int, vocab: int, hidden: int) -> None:
    weight, ids = torch.randn(vocab, hidden).to(dtype), torch.randint(0, vocab, (tokens,))
    out = device.agree("embedding", weight, ids, torch.zeros(tokens, hidden).to(dtype))[2]
    assert torch.equal(out, weight[ids])
    grad_out, held = torch.randn(tokens, hidden).to(dtype), torch.randn(vocab, hidden)
    made = device.agree("embedding_backward", grad_out, ids, held)[2]
    assert_close(made, held.double().index_add(0, ids, grad_out.double()))


def test_embedding_backward_adds_in_the_order_of_the_tokens(device: OpDevice) -> None:
    ids, held = torch.randint(0, 3, (3000,)), torch.randn(3, 256)
    grad_out, expected = torch.randn(3000, 256), held.clone()
    for token, row in zip(ids.tolist(), grad_out, strict=True):
        expected[token] += row
    assert torch.equal(device.agree("embedding_backward", grad_out, ids, held)[2], expected)


@both_dtypes
@pytest.mark.parametrize("shape", [(0, 16), (1, 1), (700, 33), (1500, 6144)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_bias(device: OpDevice, dtype: torch.dtype, shape: tuple[int, int], beta: float) -> None:
    x, bias = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    assert torch.equal(device.agree("add_bias", x, bias)[0], x + bias)
    held = torch.randn(shape[1]) if beta else torch.full((shape[1],), torch.nan)
    made = device.agree("bias_backward", x, held, beta)[1]
    assert_close(made, x.double().sum(0) + (held.double() if beta else 0))


@both_dtypes
@pytest.mark.parametrize("heads,kv_heads,dim", [(4, 2, 16), (3, 1, 10), (32, 8, 128), (2, 1, 256)])
@pytest.mark.parametrize("tokens", [0, 1, 130])
def test_qk_norm(
    device: OpDevice, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, tokens: int
) -> None:
    x, grad = (torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype) for _ in range(2))
    weight, rstd = torch.randn(2, dim).to(dtype), torch.zeros(tokens, heads + kv_heads)
    exact, exact_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.qk_norm(exact, exact_weight[0], exact_weight[1], heads, kv_heads, 1e-6)
    expected.backward(grad.double())
    made = device.agree("qk_norm", x, weight, heads, kv_heads, 1e-6, torch.full_like(x, torch.nan), rstd)
    assert_close(made[5], expected)
    assert exact.grad is not None and exact_weight.grad is not None
    held = torch.randn(2, dim)
    made = device.agree("qk_norm_backward", grad, x, weight, made[6], heads, kv_heads, held, 1.0)
    assert_close(made[0], exact.grad)
    assert_close(made[6], held.double() + exact_weight.grad)
