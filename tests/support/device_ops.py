"""An op on its device against the same op on the CPU, and against itself: what tests of CUDA ops begin with.

The device is a GPU, or the CPU on which the same kernels run (tests/cuda_on_cpu): the fixture `device` of
tests/ops gives both in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_on_cpu.emulation import Order, emulation
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from tolerances import assert_close, relative_error

TWO_ORDERS = (Order.FORWARD, Order.WARP_AHEAD_RANDOM)


class OpDevice:
    """Where ops run: torch's name of the `place` of their tensors, and the ops themselves.

    `before_runs`: what is done before each run of `agree`, one entry a run.
    """

    def __init__(self, place: str, ops: Any, before_runs: Sequence[Callable[[], None]]) -> None:
        self.place = place
        self.ops = ops
        self._before_runs = before_runs

    def agree(
        self,
        name: str,
        *args: Any,
        kind: str = "op",
        sums_within: float | None = None,
        rounded: torch.dtype = torch.float32,
    ) -> list[Any]:
        """Runs the op `name` here, each time on copies of `args`, and once as the CPU's own op.

        `args` are given on the CPU. All tensors, overwritten ones included, must be equal to the bit between
        the runs, and within the tolerance `kind` of their dtype of the CPU's. `sums_within` is the relative
        error of float64 arguments that are sums of float32 terms: those have not the accuracy of float64.
        `rounded`: the dtype of intermediates; float32 results of bfloat16 ones are within its tolerance, for
        another order of a sum may round an intermediate the other way.
        Returns the arguments after the first run, moved to the CPU.
        """
        runs = [self._run(name, args, before) for before in self._before_runs]
        host = copies(args, "cpu")
        getattr(torch.ops.fastsft, name)(*host)
        for index, (first, *others, expected) in enumerate(zip(*map(widened, [*runs, host]), strict=True)):
            if not isinstance(first, Tensor):
                continue
            for other in others:
                assert bits_equal(first, other), f"{name}: argument {index} differs from run to run"
            if first.dtype == torch.int32:  # numbers of rows and experts
                assert torch.equal(first, expected), f"{name}: argument {index} against the CPU"
            if not first.is_floating_point() or bits_equal(first, expected):  # NaN is never close
                continue
            if sums_within is not None and first.dtype == torch.float64:
                assert relative_error(first, expected) <= sums_within, f"{name}: argument {index}"
            else:
                near = first.to(rounded) if first.dtype == torch.float32 else first
                assert_close(near, expected, kind, f"{name}: argument {index} against the CPU")
        return runs[0]

    def run(self, name: str, *args: Any) -> list[Any]:
        """Run the op once here, on copies of `args`, and return them afterwards, moved to the CPU."""
        return self._run(name, args, self._before_runs[0])

    def _run(self, name: str, args: tuple[Any, ...], before: Callable[[], None]) -> list[Any]:
        before()
        arguments = copies(args, self.place)
        getattr(self.ops, name)(*arguments)
        return copies(arguments, "cpu")


def gpu() -> OpDevice:
    """The current GPU; two runs."""
    return OpDevice("cuda", torch.ops.fastsft, (lambda: None, lambda: None))


def kernels_on_cpu(orders: Sequence[Order] = TWO_ORDERS) -> OpDevice:
    """The kernels on the CPU; each run in another order of threads, with other contents of shared memory."""
    emulated = emulation()

    def before(index: int, order: Order) -> Callable[[], None]:
        return lambda: emulated.schedule(order, seed=index + 1, pattern=(0xFF, 0x7F, 0x00)[index % 3])

    return OpDevice("cpu", emulated.ops, [before(i, order) for i, order in enumerate(orders)])


def widened(args: list[Any]) -> list[Any]:
    """The arguments with 8-bit floats in float32, where torch compares them."""
    eight = (torch.float8_e4m3fn, torch.float8_e5m2)
    return [arg.float() if isinstance(arg, Tensor) and arg.dtype in eight else arg for arg in args]


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
    """With the strides of `tensor`, and like it off an address of 64 bytes."""
    begin = tensor.storage_offset() % (64 // tensor.element_size())
    size = begin + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    flat = torch.empty(size if tensor.numel() else begin, dtype=tensor.dtype, device=device)
    return flat.as_strided(tensor.shape, tensor.stride(), begin).copy_(tensor)


def bits_equal(one: Tensor, two: Tensor) -> bool:
    """Equal to the bit; NaN equals NaN."""
    if not one.is_floating_point():
        return torch.equal(one, two)
    return torch.equal(one.nan_to_num(nan=0.5), two.nan_to_num(nan=0.5)) and torch.equal(
        one.isnan(), two.isnan()
    )
