"""An op on the GPU against the same op on the CPU, and against itself: every GPU test begins with this."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from tolerances import assert_close

DEVICE = "cuda"


def agree(name: str, *args: Any, kind: str = "op") -> list[Any]:
    """Runs torch.ops.fastsft.<name> twice on the GPU and once on the CPU, each on copies of `args`.

    `args` are given on the CPU. All tensors, overwritten ones included, must be equal to the bit between the
    two runs on the GPU, and within the tolerance `kind` of their dtype between GPU and CPU. Returns the
    arguments after the first run, moved to the CPU.
    """
    first, second, host = copies(args, DEVICE), copies(args, DEVICE), copies(args, "cpu")
    for arguments in (first, second, host):
        getattr(torch.ops.fastsft, name)(*arguments)
    first, second = copies(first, "cpu"), copies(second, "cpu")
    for index, (one, two, expected) in enumerate(zip(first, second, host, strict=True)):
        if isinstance(one, Tensor) and one.is_floating_point():
            assert bits_equal(one, two), f"{name}: argument {index} differs from run to run"
            if not bits_equal(one, expected):  # equal ones may hold NaN, which is never close
                assert_close(one, expected, kind, f"{name}: argument {index} against the CPU")
    return first


def copies(args: tuple[Any, ...] | list[Any], device: str) -> list[Any]:
    """Copies on `device`; arguments that are one tensor stay one, and strides are kept."""
    made: dict[int, Tensor] = {}
    result = []
    for arg in args:
        if isinstance(arg, Tensor):
            arg = made.setdefault(id(arg), copy(arg, device))
        result.append(arg)
    return result


def copy(tensor: Tensor, device: str) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.copy_(tensor)


def bits_equal(one: Tensor, two: Tensor) -> bool:
    """Equal to the bit; NaN equals NaN."""
    return torch.equal(one.nan_to_num(nan=0.5), two.nan_to_num(nan=0.5)) and torch.equal(
        one.isnan(), two.isnan()
    )
