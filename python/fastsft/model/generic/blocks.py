"""A block of a model: whole while it is computed, forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastsft.model.generic.parameters import PlaceParameters, UnitParameters

if TYPE_CHECKING:
    from fastsft import _C


_Output = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]
# A view of a weight: its unit, where it begins there, shape and strides.
_Kept = tuple[UnitParameters, int, torch.Size, tuple[int, ...]]


class Block:
    """Wraps `module.forward`. before, after: the places next to it, which are gathered ahead.

    In training, what backward needs is kept without the unit: either it computes the block again
    (recompute), or views of weights are found again in the unit that is gathered for backward.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: PlaceParameters,
        before: PlaceParameters | None,
        after: PlaceParameters | None,
    ) -> None:
        self.parameters, self._before, self._after = parameters, before, after
        self._forward = module.forward
        self.recompute = False
        self._units: _C.UnitAccess | None = None
        self._open = 0  # calls whose backward is not done
        self._is_reduced = False
        module.forward = self._call

    def begin(self, units: _C.UnitAccess) -> None:
        """A micro-batch begins."""
        self._units, self._open, self._is_reduced = units, 0, False

    def end(self) -> None:
        """It is over, or has failed."""
        if self.parameters.shown:
            self.parameters.hide(self._access())
        self._units = None

    def _access(self) -> _C.UnitAccess:
        assert self._units is not None  # between begin and end
        return self._units

    def reduce(self) -> None:
        """Complete the gradient of this micro-batch, unless it is; of a block that nothing called: zeros."""
        if not self._is_reduced:
            self._is_reduced = True
            self.parameters.reduce(self._access())

    def _call(self, *args: object, **kwargs: object) -> _Output:
        if self._units is None:  # outside of the engine's calls there are no weights
            raise RuntimeError("a block of the generic engine was called outside of a step")
        self._show(self._after)
        if not torch.is_grad_enabled():
            result: _Output = self._forward(*args, **kwargs)
            self.parameters.hide(self._access())
            return result
        self._open += 1
        args, kwargs = _through_first(args, kwargs, self._enter)
        result = self._run(args, kwargs)
        if not self.parameters.stay(self._access()):
            self.parameters.hide(self._access())
        return _through_result(result, self._leave)

    def _run(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> _Output:
        if self.recompute:
            again: _Output = checkpoint(self._forward, *args, use_reentrant=False, **kwargs)
            return again
        with self._kept_views():
            result: _Output = self._forward(*args, **kwargs)
            return result

    def _kept_views(self) -> AbstractContextManager[object]:
        """Views of the unit are kept as places in it."""
        if self.parameters.stay(self._access()):
            return nullcontext()
        begins = {}
        for part in self.parameters.parts:
            flat = part.gather(self._access())
            begins[flat.untyped_storage().data_ptr()] = part, flat.storage_offset()

        def pack(tensor: torch.Tensor) -> torch.Tensor | _Kept:
            found = begins.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
            if found is None:
                return tensor
            part, begin = found
            return part, int(tensor.storage_offset() - begin), tensor.shape, tensor.stride()

        def unpack(kept: torch.Tensor | _Kept) -> torch.Tensor:
            if isinstance(kept, torch.Tensor):
                return kept
            part, offset, shape, stride = kept
            now = part.gather(self._access())
            return now.as_strided(shape, stride, now.storage_offset() + offset)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _show(self, ahead: PlaceParameters | None) -> None:
        if not self.parameters.shown:
            self.parameters.show(self._access())
        if ahead is not None:
            ahead.prefetch(self._access())

    def _enter(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:  # else its backward would never be known to be over
            tensor = tensor.detach().requires_grad_()
        return _Boundary.apply(tensor, self._backward_is_done)  # type: ignore[no-any-return, no-untyped-call]

    def _leave(self, tensor: torch.Tensor) -> torch.Tensor:
        return _Boundary.apply(tensor, self._backward_begins)  # type: ignore[no-any-return, no-untyped-call]

    def _backward_begins(self) -> None:
        self._show(self._before)

    def _backward_is_done(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.reduce()
            self.parameters.hide(self._access())


class _Context(Protocol):
    arrived: Callable[[], None]


class _Boundary(torch.autograd.Function):
    """The tensor itself; `arrived()` is called when its gradient is there."""

    @staticmethod
    def forward(ctx: _Context, tensor: torch.Tensor, arrived: Callable[[], None]) -> torch.Tensor:
        ctx.arrived = arrived
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.arrived()
        return gradients[0], None


def _through_first(
    args: tuple[object, ...], kwargs: dict[str, object], change: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with `change` of the first floating one, which is the stream of hidden states."""
    for at, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return (*args[:at], change(value), *args[at + 1 :]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return args, {**kwargs, name: change(value)}
    return args, kwargs


def _through_result(result: _Output, change: Callable[[torch.Tensor], torch.Tensor]) -> _Output:
    if isinstance(result, torch.Tensor):
        return change(result)
    return type(result)([change(result[0]), *result[1:]])
