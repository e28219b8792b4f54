"""Names and shapes of a model's parameters, which must be those of its engine when weights are saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import path_of

if TYPE_CHECKING:
    import torch


def check_parameters(
    named: Iterable[tuple[str, torch.Tensor]], built: Mapping[str, tuple[int, ...]], caller: str
) -> None:
    """ValueError for a parameter that is not, or not in this shape, in `built`, what the engine was made for.

    caller: what the message begins with. What else the modules hold does not count: weights alone are saved.
    """
    now = dict(named)
    for name in [*built, *now]:
        found = _form_of(now.get(name))
        expected = str(list(built[name])) if name in built else "no such parameter"
        if found != expected:
            raise ValueError(
                f"{caller}: expected {path_of(name)} as it was when the Trainer was made or last trained "
                f"({expected}), got {found}: its engine is made for the old parameters; save with "
                "model.save_pretrained(), or make a new Trainer(model=...)"
            )


def _form_of(parameter: torch.Tensor | None) -> str:
    if parameter is None:
        return "no such parameter"
    if parameter.is_meta or not parameter.is_floating_point():
        return f"{parameter.dtype} on {parameter.device}"
    return str(list(parameter.shape))
