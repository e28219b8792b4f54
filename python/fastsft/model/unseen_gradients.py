"""Parameters whose gradient cannot be asked for: the engine shows none where transformers has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import torch

_NAMES = ("grad", "_grad")
_WAY_OUT = (
    "passes and update of a step are one call of the engine, which shows no gradients; grad_norm of the logs "
    "is their norm, max_grad_norm clips them; leave it out, or train with transformers' Trainer"
)


@contextmanager
def unseen_gradients(named: list[tuple[str, torch.Tensor]], event: str) -> Iterator[None]:
    """While it lasts, to read or write `grad` of a parameter is a ValueError that names `event`."""
    names = {id(parameter): name for name, parameter in named}
    kinds = {type(parameter): _guarded(type(parameter), names, event) for _, parameter in named}
    for _, parameter in named:
        parameter.__class__ = kinds[type(parameter)]
    try:
        yield
    finally:
        for _, parameter in named:
            parameter.__class__ = type(parameter).__mro__[1]


def _guarded(kind: type, names: dict[int, str], event: str) -> type:
    def refuse(parameter: torch.Tensor, *_: object) -> NoReturn:
        where = names.get(id(parameter), "a parameter")
        raise ValueError(f"a callback's {event} asks for the gradient of {where} of the model: {_WAY_OUT}")

    def copied(parameter: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
        made: torch.Tensor = kind.__deepcopy__(parameter, memo)  # type: ignore[attr-defined]
        made.__class__ = kind
        return made

    hidden = dict.fromkeys(_NAMES, property(refuse, refuse, refuse))
    return type(kind.__name__, (kind,), {**hidden, "__deepcopy__": copied, "__module__": kind.__module__})
