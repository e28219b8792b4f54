"""Runs a transformers model's layers with weights in the engine's units.

Block wraps a layer's forward method. Before the call, it gathers the layer's units and prefetches the next
layer's. After the call, it releases the layer's units. In backward, the layers run in reverse order,
and each layer's gradient is reduced when its backward has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastsft.model.generic.units import ParameterInfo

if TYPE_CHECKING:
    from fastsft import _C

Offsets = list[tuple[str, list[int], int]]  # name, shape, and index of the first element in the unit


class UnitParameters:
    """The module parameters in one engine unit, which is either trained or frozen.

    Between `gather` and `release`, the parameters are views into the gathered unit. At other times they have
    the right shape and are NaN, so that a computation with them gives NaN.
    index: the unit's number among the trained units, or among the frozen units.
    infos: the parameters in the unit.
    offsets: each tensor's first element in the unit.
    nan: a NaN scalar on the unit's device.
    """

    def __init__(
        self, index: int, infos: list[ParameterInfo], offsets: Offsets, nan: torch.Tensor, *, trained: bool
    ) -> None:
        self.index, self.is_trained, self._nan = index, trained, nan
        self._infos = infos
        first = {name: offset for name, _, offset in offsets}
        self.ranges = [
            (first[info.stored[0].name] + (info.stored[0].within or 0), math.prod(info.shape))
            for info in infos
        ]
        self._units: _C.UnitAccess | None = None
        # Parameters that stand for buffers are registered in no module.
        self.parameters: list[nn.Parameter] = []
        for at, info in enumerate(infos):
            needs_gradient = trained and not info.is_constant
            # peft's parametrizations of experts write in place, and .data gives each parameter its own
            # version counter.
            parameter = nn.Parameter(nan.expand(info.shape).data, requires_grad=needs_gradient)
            if needs_gradient:
                parameter.register_post_accumulate_grad_hook(self._hook(at))  # type: ignore[no-untyped-call]
            self.parameters.append(parameter)
            for module, name in info.owners if info.buffer is None else ():
                module._parameters[name] = parameter
        self._set_buffers()

    def gather_flat(self, units: _C.UnitAccess) -> torch.Tensor:
        """Return the unit's flat tensor, valid until `release`. Collective."""
        flat: torch.Tensor = (units.gather if self.is_trained else units.gather_frozen)(self.index)
        return flat

    def prefetch(self, units: _C.UnitAccess) -> None:
        """Start to gather the unit. Collective."""
        (units.prefetch if self.is_trained else units.prefetch_frozen)(self.index)

    def gather(self, units: _C.UnitAccess) -> None:
        """Gather the unit, and make the parameters views into it. Collective."""
        self._units = units
        flat = self.gather_flat(units)
        for parameter, (offset, size), info in zip(self.parameters, self.ranges, self._infos, strict=True):
            parameter.data = flat.narrow(0, offset, size).view(info.shape)
        self._set_buffers()

    def release(self, units: _C.UnitAccess) -> None:
        """Set the parameters to NaN and free the unit's buffer."""
        for parameter, info in zip(self.parameters, self._infos, strict=True):
            parameter.data = self._nan.expand(info.shape)
        self._set_buffers()
        (units.release if self.is_trained else units.release_frozen)(self.index)

    def is_always_whole(self, units: _C.UnitAccess) -> bool:
        """Return True if this rank always holds the whole unit, so that views into the unit stay valid."""
        return bool(units.replicated if self.is_trained else not units.frozen_by_ranges)

    def reduce(self, units: _C.UnitAccess) -> None:
        """Reduce the unit's gradient for this micro-batch. Parameters without a gradient count as zeros.

        Collective.
        """
        if self.is_trained:
            units.reduce(self.index, self.ranges)

    def add_gradient(self, units: _C.UnitAccess, at: int, gradient: torch.Tensor) -> None:
        """Add `gradient` to the unit's flat gradient.

        at: index of the parameter to which `gradient` belongs.
        """
        offset, size = self.ranges[at]
        target = units.gradient(self.index).narrow(0, offset, size).view(self._infos[at].shape)
        if units.adds_to_gradient(self.index, offset):
            target.add_(gradient)
        else:
            target.copy_(gradient)

    def _set_buffers(self) -> None:
        """Set the modules' buffers from `parameters`, converted to the buffers' dtypes."""
        for parameter, info in zip(self.parameters, self._infos, strict=True):
            if info.buffer is not None:
                for module, name in info.owners:
                    module._buffers[name] = parameter.data.to(info.buffer)

    def _hook(self, at: int) -> Callable[[torch.Tensor], None]:
        def move_gradient(parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                assert self._units is not None  # set by `gather`
                self.add_gradient(self._units, at, gradient)

        return move_gradient


class LayerParameters:
    """A layer's parameters, in a trained unit, a frozen unit, or both. Has UnitParameters' methods."""

    def __init__(self, parts: list[UnitParameters]) -> None:
        self.parts, self.is_gathered = parts, False

    def is_always_whole(self, units: _C.UnitAccess) -> bool:
        return all(part.is_always_whole(units) for part in self.parts)

    def prefetch(self, units: _C.UnitAccess) -> None:
        for part in self.parts:
            part.prefetch(units)

    def gather(self, units: _C.UnitAccess) -> None:
        for part in self.parts:
            part.gather(units)
        self.is_gathered = True

    def release(self, units: _C.UnitAccess) -> None:
        for part in self.parts:
            part.release(units)
        self.is_gathered = False

    def reduce(self, units: _C.UnitAccess) -> None:
        for part in self.parts:
            part.reduce(units)

    def find(self, parameter: torch.Tensor) -> tuple[UnitParameters, int] | None:
        """Return the unit that contains the parameter, and the parameter's index there; else None."""
        for part in self.parts:
            for at, own in enumerate(part.parameters):
                if own is parameter:
                    return part, at
        return None


_Output = torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]
# Form in which autograd saves a weight view: unit, offset, shape, strides.
_SavedView = tuple[UnitParameters, int, torch.Size, tuple[int, ...]]


class Block:
    """Wrapper around a layer's forward method.

    before, after: the neighbouring layers, whose units are prefetched. Autograd must not keep a released unit
    alive. Therefore, either backward computes the layer again (recompute), or autograd saves each weight view
    as an offset. Backward then makes the view again from the unit that it gathers.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: LayerParameters,
        before: LayerParameters | None,
        after: LayerParameters | None,
    ) -> None:
        self.parameters, self._before, self._after = parameters, before, after
        self._forward = module.forward
        self.recompute = False
        self._units: _C.UnitAccess | None = None
        self._open = 0  # how many calls have not finished backward
        self._is_reduced = False
        module.forward = self._call

    def begin(self, units: _C.UnitAccess) -> None:
        """Prepare for the next micro-batch."""
        self._units, self._open, self._is_reduced = units, 0, False

    def end(self) -> None:
        """End a micro-batch; also called after an error."""
        if self.parameters.is_gathered:
            self.parameters.release(self._access())
        self._units = None

    def _access(self) -> _C.UnitAccess:
        assert self._units is not None  # between begin and end
        return self._units

    def reduce(self) -> None:
        """Reduce this micro-batch's gradient, if not done yet. It is zero if the layer was never called."""
        if not self._is_reduced:
            self._is_reduced = True
            self.parameters.reduce(self._access())

    def _call(self, *args: object, **kwargs: object) -> _Output:
        if self._units is None:  # the weights are NaN outside a step
            raise RuntimeError("a block of the generic engine was called outside of a step")
        self._gather(self._after)
        if not torch.is_grad_enabled():
            result: _Output = self._forward(*args, **kwargs)
            self.parameters.release(self._access())
            return result
        self._open += 1
        args, kwargs = _change_first(args, kwargs, self._enter)
        result = self._run(args, kwargs)
        if not self.parameters.is_always_whole(self._access()):
            self.parameters.release(self._access())
        return _change_result(result, self._leave)

    def _run(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> _Output:
        if self.recompute:
            result: _Output = checkpoint(self._forward, *args, use_reentrant=False, **kwargs)
            return result
        with self._saving_views_as_offsets():
            result = self._forward(*args, **kwargs)
            return result

    def _saving_views_as_offsets(self) -> AbstractContextManager[object]:
        """Make autograd save views into the unit as offsets, from which backward makes the views again."""
        if self.parameters.is_always_whole(self._access()):
            return nullcontext()
        begins = {}
        for part in self.parameters.parts:
            flat = part.gather_flat(self._access())
            begins[flat.untyped_storage().data_ptr()] = part, flat.storage_offset()

        def pack(tensor: torch.Tensor) -> torch.Tensor | _SavedView:
            unit = begins.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
            if unit is None:
                return tensor
            part, begin = unit
            return part, int(tensor.storage_offset() - begin), tensor.shape, tensor.stride()

        def unpack(saved: torch.Tensor | _SavedView) -> torch.Tensor:
            if isinstance(saved, torch.Tensor):
                return saved
            part, offset, shape, stride = saved
            flat = part.gather_flat(self._access())
            return flat.as_strided(shape, stride, flat.storage_offset() + offset)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _gather(self, neighbour: LayerParameters | None) -> None:
        if not self.parameters.is_gathered:
            self.parameters.gather(self._access())
        if neighbour is not None:
            neighbour.prefetch(self._access())

    def _enter(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:  # without a gradient, `_end_backward` would not be called
            tensor = tensor.detach().requires_grad_()
        return _Boundary.apply(tensor, self._end_backward)  # type: ignore[no-any-return, no-untyped-call]

    def _leave(self, tensor: torch.Tensor) -> torch.Tensor:
        return _Boundary.apply(tensor, self._begin_backward)  # type: ignore[no-any-return, no-untyped-call]

    def _begin_backward(self) -> None:
        self._gather(self._before)

    def _end_backward(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.reduce()
            self.parameters.release(self._access())


class _Context(Protocol):
    on_gradient: Callable[[], None]


class _Boundary(torch.autograd.Function):
    """The identity function. Its backward calls `on_gradient` when the tensor's gradient arrives."""

    @staticmethod
    def forward(ctx: _Context, tensor: torch.Tensor, on_gradient: Callable[[], None]) -> torch.Tensor:
        ctx.on_gradient = on_gradient
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.on_gradient()
        return gradients[0], None


def _change_first(
    args: tuple[object, ...], kwargs: dict[str, object], change: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Apply `change` to the first floating-point argument, the hidden states."""
    for at, value in enumerate(args):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return (*args[:at], change(value), *args[at + 1 :]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return args, {**kwargs, name: change(value)}
    return args, kwargs


def _change_result(result: _Output, change: Callable[[torch.Tensor], torch.Tensor]) -> _Output:
    if isinstance(result, torch.Tensor):
        return change(result)
    return type(result)([change(result[0]), *result[1:]])
