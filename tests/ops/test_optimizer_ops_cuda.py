"""adamw, norm_squared and compute_grad_scale on the GPU; ops over more than 2^31 elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import reference
from device_ops import OpDevice
from tolerances import assert_close

OPTIONS = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
HUGE = 2**31 + 8


def control(scale: float, step: int) -> torch.Tensor:
    return torch.tensor([1.0, 1.0, scale, step], dtype=torch.float64)


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 63, 40001, 3000000])
@pytest.mark.parametrize("with_copy", [False, True])
def test_adamw(device: OpDevice, grad_dtype: torch.dtype, size: int, with_copy: bool) -> None:
    param, grad = torch.randn(size), torch.randn(size).to(grad_dtype)
    moments, copy = [torch.randn(size), torch.rand(size)], torch.zeros(size, dtype=torch.bfloat16)
    expected = reference.adamw(
        param.double(), 0.5 * grad.double(), *(m.double() for m in moments), step=7, **OPTIONS
    )
    made = device.agree(
        "adamw", param, copy if with_copy else None, grad, *moments, control(0.5, 7), *OPTIONS.values()
    )
    for ours, exact in zip([made[0], made[3], made[4]], expected, strict=True):
        assert_close(ours, exact)
    assert not with_copy or torch.equal(made[1], reference.upper_half(made[0]))


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size, first", [(1, 0), (63, 0), (40001, 3), (3000000, 2**34)])
def test_adamw_with_narrow_state(
    device: OpDevice, grad_dtype: torch.dtype, split: bool, size: int, first: int
) -> None:
    """The same random bits as on the CPU: moments differ only where the arithmetic does."""
    master, grad = torch.randn(size), torch.randn(size).to(grad_dtype)
    moments = [torch.randn(size).bfloat16(), torch.rand(size).bfloat16()]
    high, low = reference.upper_half(master), (master.view(torch.int32) & 0xFFFF).to(torch.int16)
    state = [low, high] if split else [master, high]
    made = device.agree("adamw", *state, grad, *moments, control(0.5, 7), *OPTIONS.values(), 2**40 + 5, first)
    expected = reference.adamw(
        master.double(), 0.5 * grad.double(), *(m.double() for m in moments), step=7, **OPTIONS
    )
    whole = (
        ((made[1].view(torch.int16).int() << 16) + made[0].int()).view(torch.float32) if split else made[0]
    )
    assert_close(whole, expected[0])
    assert torch.equal(made[1], reference.upper_half(whole))
    words = reference.element_words(2**40 + 5, 7, first, size)
    for moment, exact, shift in zip(made[3:5], expected[1:], (0, 16), strict=True):
        random = (words >> np.uint64(shift)) & np.uint64(0xFFFF)
        rounded = reference.round_stochastically(exact.float(), random)
        assert (moment != rounded).double().mean().item() < 1e-3


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_adamw_on_a_range_at_any_offset(device: OpDevice, offset: int) -> None:
    whole = [torch.randn(1003, device=device.place) for _ in range(3)] + [
        torch.rand(1003, device=device.place)
    ]
    before = [tensor.clone() for tensor in whole]
    param, grad, exp_avg, exp_avg_sq = (tensor[offset:1001] for tensor in whole)
    device.ops.adamw(
        param, None, grad, exp_avg, exp_avg_sq, control(1.0, 1).to(device.place), *OPTIONS.values()
    )
    exact = [tensor[offset:1001].double() for tensor in before]
    expected = reference.adamw(exact[0], exact[1], exact[2], exact[3], step=1, **OPTIONS)
    assert_close(param, expected[0])
    for after, was in zip(whole, before, strict=True):
        assert torch.equal(after[:offset], was[:offset]) and torch.equal(after[1001:], was[1001:])


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_bad_scale_changes_nothing(device: OpDevice, scale: float) -> None:
    tensors = [torch.randn(50), torch.randn(50).bfloat16(), torch.randn(50), torch.randn(50), torch.rand(50)]
    made = device.agree("adamw", *tensors, control(scale, 1), *OPTIONS.values())
    assert all(torch.equal(a, b) for a, b in zip(made[:5], tensors, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 3, 65536, 5000007])
@pytest.mark.parametrize("offset", [0, 1])
def test_norm_squared(device: OpDevice, dtype: torch.dtype, size: int, offset: int) -> None:
    x = torch.randn(size + offset).to(device.place, dtype)[offset:]
    sums = [torch.ones(1, dtype=torch.float64, device=device.place) for _ in range(2)]
    for out in sums:
        device.ops.norm_squared(x, out)
    assert sums[0].item() == pytest.approx(1 + x.double().square().sum().item(), rel=1e-12)
    assert sums[0].item() == sums[1].item()


@pytest.mark.parametrize(
    "loss,norm,max_norm",
    [(1.0, 4.0, 1.0), (1.0, 0.1, 1.0), (1.0, 9.0, 0.0), (math.nan, 1, 1), (1, math.inf, 1)],
)
def test_compute_grad_scale(device: OpDevice, loss: float, norm: float, max_norm: float) -> None:
    block = torch.tensor([loss, norm, 0.0, 3.0], dtype=torch.float64)
    made = device.agree("compute_grad_scale", block, max_norm)[0]
    good = math.isfinite(loss) and math.isfinite(norm)
    assert made[3].item() == (4 if good else 3) and math.isfinite(made[2].item()) == good


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 64, 40001])
@pytest.mark.parametrize("offset", [0, 1])
def test_accumulate(device: OpDevice, dtype: torch.dtype, size: int, offset: int) -> None:
    total, x = torch.randn(size + offset).to(dtype)[offset:], torch.randn(size + offset)[offset:]
    made = device.agree("accumulate", total, x)[0]
    assert torch.equal(made, (total.float() + x).to(dtype))


def enough_memory(gib: int) -> bool:
    return torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > gib << 30


@pytest.mark.cuda
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.skipif(not enough_memory(60), reason="needs 60 GiB of device memory")
def test_more_than_two_to_the_31_elements(device: OpDevice) -> None:
    x = torch.ones(HUGE, device=device.place)
    out = torch.zeros(1, dtype=torch.float64, device=device.place)
    device.ops.norm_squared(x, out)
    assert out.item() == HUGE
    grad, moments = (
        torch.ones(HUGE, device=device.place),
        [torch.zeros(HUGE, device=device.place) for _ in range(2)],
    )
    device.ops.adamw(x, None, grad, *moments, control(1.0, 1).to(device.place), 0.5, 0.9, 0.999, 1e-8, 0.0)
    assert x[:4].tolist() == x[-4:].tolist() == pytest.approx([0.5] * 4, rel=1e-6)
    rows = x.fill_(2.0).view(-1, 8)
    normed, rstd = torch.empty_like(rows), torch.empty(len(rows), device=device.place)
    device.ops.rms_norm(rows, None, torch.ones(8, device=device.place), 0.0, None, normed, rstd)
    assert normed[0].tolist() == normed[-1].tolist() == [1.0] * 8
    device.ops.swiglu(rows, normed.view(-1)[: HUGE // 2].view(-1, 4))
    expected = 4 / (1 + math.exp(-2))
    assert normed.view(-1)[HUGE // 2 - 1].item() == pytest.approx(expected, rel=1e-5)
