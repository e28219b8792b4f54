"""A block of a model: whole while it is computed, forwards and backwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastsft.model.generic.placement import Placed

if TYPE_CHECKING:
    from fastsft import _C

Places = list[tuple[str, list[int], int]]


class UnitParameters:
    """The parameters of one unit of the engine, in its modules.

    Between `show` and `hide` they are views of the gathered unit; else they have their shape but no values:
    whatever is computed with them is NaN. index: of the unit, among those that are trained or those that
    are not.
    """

    def __init__(
        self, index: int, placed: list[Placed], places: Places, nothing: torch.Tensor, *, trained: bool
    ) -> None:
        self.index, self.is_trained, self._nothing = index, trained, nothing
        self._placed = placed
        offsets = {name: offset for name, _, offset in places}
        self.places = [
            (offsets[one.stored[0].name] + (one.stored[0].within or 0), math.prod(one.shape))
            for one in placed
        ]
        self._units: _C.UnitAccess | None = None
        self.parameters: list[nn.Parameter] = []  # those of buffers are in no module
        for at, one in enumerate(placed):
            needs_gradient = trained and not one.is_held
            # .data: each counts its own changes in place; peft's parametrizations of experts write to theirs
            parameter = nn.Parameter(nothing.expand(one.shape).data, requires_grad=needs_gradient)
            if needs_gradient:
                parameter.register_post_accumulate_grad_hook(self._hook(at))  # type: ignore[no-untyped-call]
            self.parameters.append(parameter)
            for module, name in one.owners if one.buffer is None else ():
                module._parameters[name] = parameter
        self._put_buffers()

    def gather(self, units: _C.UnitAccess) -> torch.Tensor:
        """The flat unit, valid until `hide`; collective."""
        flat: torch.Tensor = (units.gather if self.is_trained else units.gather_frozen)(self.index)
        return flat

    def prefetch(self, units: _C.UnitAccess) -> None:
        """Start to gather; collective."""
        (units.prefetch if self.is_trained else units.prefetch_frozen)(self.index)

    def show(self, units: _C.UnitAccess) -> None:
        """Gather the unit, and make the parameters views of it; collective."""
        self._units = units
        flat = self.gather(units)
        for parameter, (offset, size), one in zip(self.parameters, self.places, self._placed, strict=True):
            parameter.data = flat.narrow(0, offset, size).view(one.shape)
        self._put_buffers()

    def hide(self, units: _C.UnitAccess) -> None:
        """Release the unit."""
        for parameter, one in zip(self.parameters, self._placed, strict=True):
            parameter.data = self._nothing.expand(one.shape)
        self._put_buffers()
        (units.release if self.is_trained else units.release_frozen)(self.index)

    def stays(self, units: _C.UnitAccess) -> bool:
        """True if the unit is whole all the time, whether it is gathered or not."""
        return bool(units.replicated if self.is_trained else not units.frozen_by_ranges)

    def reduce(self, units: _C.UnitAccess) -> None:
        """The gradient of this micro-batch is complete; what got none has zeros; collective."""
        if self.is_trained:
            units.reduce(self.index, self.places)

    def add_gradient(self, units: _C.UnitAccess, at: int, gradient: torch.Tensor) -> None:
        """Put `gradient` of parameter number `at` into the flat gradient of the unit."""
        offset, size = self.places[at]
        target = units.gradient(self.index).narrow(0, offset, size).view(self._placed[at].shape)
        if units.adds_to_gradient(self.index, offset):
            target.add_(gradient)
        else:
            target.copy_(gradient)

    def _put_buffers(self) -> None:
        """Give the modules the buffers that `parameters` are now, in their own types."""
        for parameter, one in zip(self.parameters, self._placed, strict=True):
            if one.buffer is not None:
                for module, name in one.owners:
                    module._buffers[name] = parameter.data.to(one.buffer)

    def _hook(self, at: int) -> Callable[[torch.Tensor], None]:
        def take(parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                assert self._units is not None  # of `show`
                self.add_gradient(self._units, at, gradient)

        return take


class PlaceParameters:
    """All parameters of one place of the model: a unit that is trained, one that is not, or both."""

    def __init__(self, parts: list[UnitParameters]) -> None:
        self.parts, self._shown = parts, False

    @property
    def shown(self) -> bool:
        """They are views now."""
        return self._shown

    def stay(self, units: _C.UnitAccess) -> bool:
        """True if all of it is whole all the time."""
        return all(part.stays(units) for part in self.parts)

    def prefetch(self, units: _C.UnitAccess) -> None:
        """Start to gather; collective."""
        for part in self.parts:
            part.prefetch(units)

    def show(self, units: _C.UnitAccess) -> None:
        """As of each unit; collective."""
        for part in self.parts:
            part.show(units)
        self._shown = True

    def hide(self, units: _C.UnitAccess) -> None:
        """As of each unit."""
        for part in self.parts:
            part.hide(units)
        self._shown = False

    def reduce(self, units: _C.UnitAccess) -> None:
        """As of each unit; collective."""
        for part in self.parts:
            part.reduce(units)

    def find(self, parameter: torch.Tensor) -> tuple[UnitParameters, int] | None:
        """The unit of `parameter`, and its number there."""
        for part in self.parts:
            for at, one in enumerate(part.parameters):
                if one is parameter:
                    return part, at
        return None


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
