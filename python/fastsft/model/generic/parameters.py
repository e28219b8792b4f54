"""Parameters as views of gathered units, and their gradients on the way into the units' flat gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

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
