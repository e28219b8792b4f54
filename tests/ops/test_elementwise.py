"""rope, swiglu and embedding with their backward passes."""

from __future__ import annotations

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [2, 8, 40])
def test_rope_rotates_the_first_heads_only(dtype: torch.dtype, head_dim: int) -> None:
    tokens, heads, others = 11, 3, 2
    x = torch.randn(tokens, (heads + others) * head_dim).to(dtype)
    positions = torch.randint(0, 50, (tokens,))
    frequencies = reference.rope_inverse_frequencies(head_dim)
    table = reference.rope_tables(torch.arange(50), frequencies)
    rotated = reference.rope(
        x[:, : heads * head_dim].double().view(tokens, heads, head_dim),
        *reference.rope_tables(positions, frequencies),
    ).flatten(1)
    out = x.clone()
    torch.ops.fastsft.rope(out, *table, positions.int(), heads, False)
    assert_close(out[:, : heads * head_dim], rotated)
    assert torch.equal(out[:, heads * head_dim :], x[:, heads * head_dim :])
    torch.ops.fastsft.rope(out, *table, positions.int(), heads, True)
    assert_close(out, x)


def test_rope_refuses_positions_beyond_its_tables() -> None:
    table = reference.rope_tables(torch.arange(4), reference.rope_inverse_frequencies(2))
    with pytest.raises(ValueError, match="position 4 of token 1 is not below 4"):
        torch.ops.fastsft.rope(torch.ones(2, 2), *table, torch.tensor([3, 4]).int(), 1, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 19), (130, 64), (0, 8)])
@pytest.mark.parametrize("gelu", [False, True])
def test_swiglu(dtype: torch.dtype, shape: tuple[int, int], gelu: bool) -> None:
    tokens, width = shape
    gate_up = (4 * torch.randn(tokens, 2 * width)).to(dtype)
    grad_out, out = torch.randn(shape).to(dtype), torch.empty(shape, dtype=dtype)
    exact = gate_up.double().requires_grad_()
    expected = (reference.geglu if gelu else reference.swiglu)(exact)
    expected.backward(grad_out.double())
    torch.ops.fastsft.swiglu(gate_up, out, gelu)
    assert_close(out, expected)
    made, remade = torch.empty_like(gate_up), grad_out.clone()
    torch.ops.fastsft.swiglu_backward(remade, gate_up, made, True, gelu)
    assert torch.equal(remade, out)
    torch.ops.fastsft.swiglu_backward(grad_out, gate_up, gate_up, False, gelu)  # in place
    assert_close(gate_up, exact.grad)
    assert torch.equal(made, gate_up)


def test_swiglu_far_from_zero() -> None:
    gate = torch.tensor([-200.0, -90.0, -88.0, 0.0, 88.0, 200.0])
    out = torch.empty(1, 6)
    torch.ops.fastsft.swiglu(torch.cat([gate, torch.ones(6)])[None], out)
    torch.testing.assert_close(out[0], torch.nn.functional.silu(gate), rtol=1e-5, atol=1e-35)


def test_geglu_far_from_zero() -> None:
    gate = torch.tensor([-1e4, -30.0, -5.0, 0.0, 5.0, 1e4])
    gate_up, out, grad = torch.cat([gate, torch.ones(6)])[None], torch.empty(1, 6), torch.empty(1, 12)
    torch.ops.fastsft.swiglu(gate_up, out, True)
    expected = torch.nn.functional.gelu(gate.double(), approximate="tanh").float()
    torch.testing.assert_close(out[0], expected, rtol=1e-5, atol=1e-30)
    torch.ops.fastsft.swiglu_backward(torch.ones(1, 6), gate_up, grad, False, True)
    exact = gate.double().requires_grad_()
    torch.nn.functional.gelu(exact, approximate="tanh").sum().backward()
    torch.testing.assert_close(grad[0, :6].double(), exact.grad, rtol=1e-5, atol=1e-20)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(13, 6).to(dtype), torch.tensor([3, 0, 3, 12, 3, 0])
    out = torch.empty(6, 6, dtype=dtype)
    torch.ops.fastsft.embedding(weight, ids, out)
    assert torch.equal(out, weight[ids])
    grad_out, grad = torch.randn(6, 6).to(dtype), torch.randn(13, 6)
    expected = grad.double().index_add(0, ids, grad_out.double())
    torch.ops.fastsft.embedding_backward(grad_out, ids, grad)
    assert_close(grad, expected)


@pytest.mark.parametrize("bad", [-1, 13])
def test_embedding_refuses_ids_outside_the_vocabulary(bad: int) -> None:
    ids = torch.tensor([1, bad])
    with pytest.raises(ValueError, match=f"id {bad} of token 1 is not in a vocabulary of 13"):
        torch.ops.fastsft.embedding(torch.ones(13, 2), ids, torch.empty(2, 2))
    with pytest.raises(ValueError, match=f"id {bad} of token 1 is not in a vocabulary of 13"):
        torch.ops.fastsft.embedding_backward(torch.ones(2, 2), ids, torch.ones(13, 2))
