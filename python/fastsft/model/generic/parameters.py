"""Parameters as views of gathered units, and their gradients on the way into the units' flat gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fastsft.model.generic.placement import Unit


class UnitParameters:
    """The parameters of one unit, in its modules.

    Between `show` and `hide` they are views of the gathered unit; else they have their shape but no values:
    whatever is computed with them is NaN.
    """

    def __init__(
        self, index: int, unit: Unit, places: list[tuple[str, list[int], int]], nothing: torch.Tensor
    ) -> None:
        self.index, self._nothing = index, nothing
        offsets = {name: offset for name, _, offset in places}
        self.places = [(offsets[one.name], math.prod(one.shape)) for one in unit.parameters]
        self._shapes = [one.shape for one in unit.parameters]
        self._shown = False
        self._units: Any = None
        self.parameters: list[nn.Parameter] = []
        for at, one in enumerate(unit.parameters):
            parameter = nn.Parameter(nothing.expand(one.shape))
            parameter.register_post_accumulate_grad_hook(self._hook(at))  # type: ignore[no-untyped-call]
            self.parameters.append(parameter)
            for module, name in one.owners:
                module._parameters[name] = parameter

    @property
    def shown(self) -> bool:
        """They are views now."""
        return self._shown

    def show(self, units: Any) -> None:
        """Gather the unit, and make the parameters views of it; collective."""
        self._units = units
        flat = units.gather(self.index)
        for parameter, (offset, size), shape in zip(self.parameters, self.places, self._shapes, strict=True):
            parameter.data = flat.narrow(0, offset, size).view(shape)
        self._shown = True

    def hide(self, units: Any) -> None:
        """Release the unit."""
        for parameter, shape in zip(self.parameters, self._shapes, strict=True):
            parameter.data = self._nothing.expand(shape)
        self._shown = False
        units.release(self.index)

    def reduce(self, units: Any) -> None:
        """The gradient of this micro-batch is complete; what got none has zeros; collective."""
        units.reduce(self.index, self.places)

    def add_gradient(self, units: Any, at: int, gradient: torch.Tensor) -> None:
        """Put `gradient` of parameter number `at` into the flat gradient of the unit."""
        offset, size = self.places[at]
        target = units.gradient(self.index).narrow(0, offset, size).view(self._shapes[at])
        if units.adds_to_gradient(self.index, offset):
            target.add_(gradient)
        else:
            target.copy_(gradient)

    def _hook(self, at: int) -> Any:
        def take(parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                self.add_gradient(self._units, at, gradient)

        return take
