"""How close is close enough: one table by dtype, for every test.

"Relative error" is the relative L2 error of one tensor; losses are compared absolutely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """op: one operator, forward or backward. model: logits and parameter gradients. loss: absolute."""

    op: float
    model: float
    loss: float


TOLERANCES = {
    torch.float64: Tolerance(op=1e-12, model=1e-10, loss=1e-12),
    torch.float32: Tolerance(op=3e-6, model=1e-5, loss=2e-6),
    torch.bfloat16: Tolerance(op=6e-3, model=3e-2, loss=2e-2),
    torch.float16: Tolerance(op=8e-4, model=4e-3, loss=3e-3),  # three bits more
}


@dataclass(frozen=True)
class CurveBand:
    """How far two loss curves are apart, absolutely: at the worst step, and on average over the steps."""

    largest: float
    mean: float


BFLOAT16_MOMENTS_CURVE = CurveBand(largest=0.003, mean=0.0005)  # bfloat16 moments beside float32, 30 steps
# fp8 recipes beside torchao's, 30 steps, by the number of layers: more layers amplify what 8 bits round away
FP8_CURVES = {2: CurveBand(largest=0.03, mean=0.008), 12: CurveBand(largest=0.15, mean=0.03)}
FP8_WGRAD_CURVES = {2: CurveBand(largest=0.03, mean=0.01), 12: CurveBand(largest=0.2, mean=0.03)}
BFLOAT16_CURVE = CurveBand(largest=0.005, mean=0.0015)  # bfloat16 compute beside float32, 30 steps


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| in float64; the absolute error when `expected` is zero."""
    if actual.shape != expected.shape:
        raise AssertionError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    difference = (actual.double() - expected.double()).norm().item()
    size = expected.double().norm().item()
    return difference / size if size > 0 else difference


def assert_close(actual: Tensor, expected: Tensor, kind: str = "op", name: str = "tensor") -> None:
    """Relative error within TOLERANCES[actual.dtype].<kind>; NaN never passes."""
    limit = getattr(TOLERANCES[actual.dtype], kind)
    error = relative_error(actual, expected)
    if not error <= limit:
        raise AssertionError(f"{name}: relative error {error:.3e} > {limit:.1e} ({actual.dtype}, {kind})")
