"""Tensors of model files that the engine does not hold: they are saved as they were read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from fastsft.model.stored_weights import DTYPES, OTHER_DTYPES, StoredWeights, bits_of
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_SHOWN = 3
_WORDS = {f"torch.{name}": stored for stored, name in {**DTYPES, **OTHER_DTYPES}.items()}


def carry_from_files(engine: _C.Engine, stored: StoredWeights, names: Iterable[str]) -> None:
    """Save the tensors `names` of `stored` with the engine's model.

    Safetensors stay open and are read at each save; pickled tensors are kept in memory.
    """
    from fastsft import _C

    for name in names:
        entry = stored.tensors[name]
        shape = list(entry.shape)
        if stored.is_pickled:
            _C.carry_values(engine, name, entry.dtype, shape, bytes(bits_of(stored.read_any(name))))
        else:
            _C.carry_from_file(engine, name, entry.dtype, shape, str(entry.file), stored.data_begin(name))


def carry_value(engine: _C.Engine, name: str, value: torch.Tensor) -> None:
    """Save `value`, as it is now, under `name`."""
    from fastsft import _C

    data = bytes(bits_of(value.detach().cpu().contiguous()))
    _C.carry_values(engine, name, _WORDS[str(value.dtype)], list(value.shape), data)


def tell_rest(carried: Sequence[str], ignored: Sequence[str], kind: str) -> None:
    """Lines about tensors of the files that the class `kind` has no place for, or reads past."""
    if carried:
        tell(f"{kind} has no place for {_listed(carried)}: not trained, and saved as in the files")
    if ignored:
        tell(f"{kind} of transformers reads past {_listed(ignored)}: not trained, and not saved, as by it")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'} ({', '.join(names[:_SHOWN])}{more})"


def integer_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of `model` that are saved with its weights and hold no floating-point numbers, by name."""
    saved = {
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in saved and not buffer.is_floating_point()
    }
