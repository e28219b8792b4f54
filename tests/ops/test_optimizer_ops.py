"""adamw, compute_grad_scale and norm_squared over flat ranges."""

from __future__ import annotations

import math

import pytest
import torch

import reference
from fastsft import _C  # noqa: F401
from tolerances import assert_close

OPTIONS = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


def control_of(
    loss: float = 0.0, norm_squared: float = 0.0, scale: float = 0.0, step: int = 0
) -> torch.Tensor:
    """The control block of ops/gradient/step_scalars.h."""
    return torch.tensor([loss, norm_squared, scale, step], dtype=torch.float64)


def step(tensors: list[torch.Tensor], number: int, scale: float, copy: torch.Tensor | None = None) -> None:
    param, grad, exp_avg, exp_avg_sq = tensors
    torch.ops.fastsft.adamw(
        param, copy, grad, exp_avg, exp_avg_sq, control_of(scale=scale, step=number), *OPTIONS.values()
    )


@pytest.mark.parametrize("size", [1, 63, 40001])
def test_five_steps_equal_the_formula(size: int) -> None:
    param, copy = torch.randn(size), torch.empty(size, dtype=torch.bfloat16)
    state = [param.double(), torch.zeros(size).double(), torch.zeros(size).double()]
    exp_avg, exp_avg_sq = torch.zeros(size), torch.zeros(size)
    for number in range(1, 6):
        grad = torch.randn(size)
        state = list(reference.adamw(state[0], 0.5 * grad.double(), *state[1:], step=number, **OPTIONS))
        step([param, grad, exp_avg, exp_avg_sq], number, 0.5, copy)
    for ours, expected in zip([param, exp_avg, exp_avg_sq], state, strict=True):
        assert_close(ours, expected)
    assert torch.equal(copy, reference.upper_half(param))


def test_steps_equal_torch_adamw() -> None:
    ours = torch.randn(1000)
    theirs = torch.nn.Parameter(ours.clone())
    moments = [torch.zeros(1000), torch.zeros(1000)]
    optimizer = torch.optim.AdamW([theirs], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for number in range(1, 11):
        theirs.grad = torch.randn(1000)
        step([ours, theirs.grad.clone(), *moments], number, 1.0)
        optimizer.step()
    torch.testing.assert_close(ours, theirs.data, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(scale: float) -> None:
    tensors = [torch.randn(50) for _ in range(3)] + [torch.rand(50)]
    copy = torch.randn(50).bfloat16()
    before = [tensor.clone() for tensor in [*tensors, copy]]
    step(tensors, 1, scale, copy)
    assert all(torch.equal(a, b) for a, b in zip([*tensors, copy], before, strict=True))


def test_bfloat16_gradients_count_as_their_float32_values() -> None:
    grad = torch.randn(2500).bfloat16()
    wide, narrow = ([torch.ones(2500), g, torch.zeros(2500), torch.zeros(2500)] for g in (grad.float(), grad))
    for tensors in (wide, narrow):
        step(tensors, 1, 0.25)
    assert all(torch.equal(wide[i], narrow[i]) for i in (0, 2, 3))
    sums = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    for gradient, out in zip((grad, grad.float()), sums, strict=True):
        torch.ops.fastsft.norm_squared(gradient, out)
    assert torch.equal(*sums)


@pytest.mark.parametrize("max_norm", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("size", [1e-4, 0.7, 3.0, 1e6])
def test_compute_grad_scale_scales_as_torch_clips(max_norm: float, size: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([size])
    if max_norm:
        torch.nn.utils.clip_grad_norm_([weight], max_norm)
    control = control_of(norm_squared=float(torch.tensor(size).double()) ** 2, step=4)
    torch.ops.fastsft.compute_grad_scale(control, max_norm)
    assert control[2].item() * size == pytest.approx(weight.grad.item(), rel=1e-6)
    assert control[3] == 5 and control[2] == control[2].float()


@pytest.mark.parametrize(
    "loss, norm_squared", [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (1.0, -1.0)]
)
def test_compute_grad_scale_holds_back_a_bad_step(loss: float, norm_squared: float) -> None:
    control = control_of(loss, norm_squared, step=4)
    torch.ops.fastsft.compute_grad_scale(control, 1.0)
    assert control[2].isnan() and control[3] == 4


@pytest.mark.parametrize("size", [0, 1, 65536, 200001])
def test_norm_squared_adds_in_float64(size: int) -> None:
    x, out = torch.randn(size), torch.ones(1, dtype=torch.float64)
    torch.ops.fastsft.norm_squared(x, out)
    assert out.item() == pytest.approx(1 + x.double().square().sum().item(), rel=1e-12)


def test_norm_squared_does_not_depend_on_threads() -> None:
    x, sums = torch.randn(300001), []
    threads = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            sums.append(torch.zeros(1, dtype=torch.float64))
            torch.ops.fastsft.norm_squared(x, sums[-1])
    finally:
        torch.set_num_threads(threads)
    assert sums[0].item() == sums[1].item()
