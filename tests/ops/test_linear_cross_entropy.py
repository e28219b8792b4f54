"""Head and loss in one against log-softmax under autograd."""

from __future__ import annotations

import math

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import TOLERANCES, assert_close, relative_error


def run(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    token_weights: torch.Tensor,
    smoothing: float = 0.0,
    grad_weight: torch.Tensor | None = None,
) -> tuple[float, torch.Tensor, torch.Tensor]:
    loss, grad_hidden = torch.zeros(1, dtype=torch.float64), torch.full_like(hidden, torch.nan)
    beta = 0.0 if grad_weight is None else 1.0
    grad_weight = torch.full(weight.shape, torch.nan) if grad_weight is None else grad_weight
    torch.ops.fastsft.linear_cross_entropy(
        hidden, weight, targets, token_weights, smoothing, loss, grad_hidden, grad_weight, beta
    )
    return loss.item(), grad_hidden, grad_weight


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens,vocab", [(1, 5), (40, 97), (700, 33000)])
def test_loss_and_gradients(dtype: torch.dtype, smoothing: float, tokens: int, vocab: int) -> None:
    # Logits around 1: a loss far smaller than its logits has their rounding, not its own.
    hidden, weight = (torch.randn(tokens, 24) / 24**0.5).to(dtype), torch.randn(vocab, 24).to(dtype)
    targets, token_weights = torch.randint(0, vocab, (tokens,)), torch.rand(tokens)
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.linear_cross_entropy(h, w, targets, token_weights, smoothing, logits_dtype=dtype)
    expected.backward()
    loss, grad_hidden, grad_weight = run(hidden, weight, targets, token_weights, smoothing)
    assert loss == pytest.approx(expected.item(), rel=2e-6)
    assert relative_error(grad_hidden, h.grad) <= TOLERANCES[dtype].model
    assert relative_error(grad_weight, w.grad) <= TOLERANCES[dtype].model


def test_gradients_accumulate_and_the_loss_adds_up() -> None:
    hidden, weight, targets = torch.randn(6, 8), torch.randn(11, 8), torch.randint(0, 11, (6,))
    _, _, once = run(hidden, weight, targets, torch.ones(6))
    _, _, twice = run(hidden, weight, targets, torch.ones(6), grad_weight=once.clone())
    assert_close(twice, 2 * once)


def test_no_token_leaves_no_gradient() -> None:
    loss, _, grad_weight = run(
        torch.empty(0, 8), torch.randn(11, 8), torch.empty(0, dtype=torch.long), torch.empty(0)
    )
    assert loss == 0.0 and grad_weight.eq(0).all()


def test_extreme_logits_and_nan() -> None:
    hidden, weight = torch.tensor([[300.0], [-300.0]]), torch.tensor([[1.0], [-1.0], [0.0]])
    loss, grad_hidden, _ = run(hidden, weight, torch.tensor([1, 1]), torch.ones(2))
    assert loss == pytest.approx(600.0, rel=1e-6) and grad_hidden.isfinite().all()
    loss, _, _ = run(torch.tensor([[math.nan], [1.0]]), weight, torch.tensor([0, 0]), torch.ones(2))
    assert math.isnan(loss)


def test_a_target_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="target 11 is not in a vocabulary of 11"):
        run(torch.ones(1, 8), torch.ones(11, 8), torch.tensor([11]), torch.ones(1))


@pytest.mark.variants("40-97", "1-5")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens,vocab", [(40, 97), (700, 33000)])
def test_a_frozen_weight_and_one_of_low_rank(dtype: torch.dtype, tokens: int, vocab: int) -> None:
    hidden, weight = (torch.randn(tokens, 24) / 24**0.5).to(dtype), torch.randn(vocab, 24).to(dtype)
    rows, matrix = (torch.randn(tokens, 3) / 3).to(dtype), torch.randn(vocab, 3).to(dtype)
    targets, token_weights = torch.randint(0, vocab, (tokens,)), torch.rand(tokens)
    exact = [tensor.double().requires_grad_() for tensor in (hidden, rows, matrix)]
    frozen = reference.rounded(exact[0] @ weight.double().T, dtype)
    logits = reference.rounded(frozen + exact[1] @ exact[2].T, dtype)
    expected = reference.cross_entropy(logits, targets, token_weights, 0.1)
    expected.backward()
    loss, made = torch.zeros(1, dtype=torch.float64), [torch.full_like(hidden, torch.nan)]
    before = 1e-3 * torch.randn(vocab, 3)  # what was there is added to
    made += [torch.full_like(rows, torch.nan), before.clone()]
    torch.ops.fastsft.linear_cross_entropy(
        hidden, weight, targets, token_weights, 0.1, loss, made[0], None, 0.0, None,
        rows, matrix, made[1], made[2], 1.0,
    )  # fmt: skip
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    made[2] -= before
    for got, tensor in zip(made, exact, strict=True):
        assert tensor.grad is not None
        assert relative_error(got, tensor.grad) <= TOLERANCES[dtype].model
    again = torch.zeros(1, dtype=torch.float64)
    torch.ops.fastsft.linear_cross_entropy(
        hidden, weight, targets, token_weights, 0.1, again, None, None, 0.0, None, rows, matrix
    )
    assert again.item() == pytest.approx(loss.item(), rel=1e-12)
    with pytest.raises(ValueError, match="low_rank, its weight and their gradients go together"):
        torch.ops.fastsft.linear_cross_entropy(
            hidden, weight, targets, token_weights, 0.1, again, made[0], None, 0.0, None, rows, matrix
        )


@pytest.mark.variants("[30.0-40-97-0.1-dtype1]", "[1.0-1-5-0.0-dtype0]", "[1.0-40-97-0.0-dtype2]")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens,vocab", [(1, 5), (40, 97), (700, 33000)])
@pytest.mark.parametrize("cap", [1.0, 30.0])
def test_soft_cap(dtype: torch.dtype, smoothing: float, tokens: int, vocab: int, cap: float) -> None:
    hidden, weight = (torch.randn(tokens, 24) / 24**0.5).to(dtype), torch.randn(vocab, 24).to(dtype)
    targets, token_weights = torch.randint(0, vocab, (tokens,)), torch.rand(tokens)
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected = reference.linear_cross_entropy(h, w, targets, token_weights, smoothing, cap, dtype)
    expected.backward()
    loss, made = torch.zeros(1, dtype=torch.float64), (torch.empty_like(hidden), torch.empty(weight.shape))
    torch.ops.fastsft.linear_cross_entropy(
        hidden, weight, targets, token_weights, smoothing, loss, *made, 0.0, softcap=cap
    )
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    assert relative_error(made[0], h.grad) <= TOLERANCES[dtype].model
    assert relative_error(made[1], w.grad) <= TOLERANCES[dtype].model
