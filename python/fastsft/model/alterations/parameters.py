"""Parameters and buffers of a class of a script, whose operations torch would ask that class for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import Alteration, path_of
from fastsft.originals.classes import is_class_of
from fastsft.originals.functions import described

if TYPE_CHECKING:
    from torch import nn

# Whose own classes of tensors hold and move weights; where they compute, so does their module.
_LIBRARIES = ("torch", "transformers", "accelerate", "bitsandbytes", "deepspeed", "peft")
# What a class may have of its own: made, shown and copied, a tensor computes the same.
_HARMLESS = {
    "__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__format__", "__hash__", "__dir__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
}  # fmt: skip
_NATIVE = "with torch.nn.Parameter and torch.Tensor"
_WAY_OUT = "give the module a torch.nn.Parameter of its data, or train with transformers' Trainer"


def foreign_tensors(model: nn.Module) -> Iterator[Alteration]:
    """Those whose class, or a base of it, is a script's and has a method that hides one of torch's."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        for where in _hiding(type(tensor)):
            yield Alteration(
                path_of(name),
                f"is of {described(type(tensor))}, which has its own {where}",
                _NATIVE,
                _WAY_OUT,
            )
            break


def _hiding(kind: type) -> Iterator[str]:
    torchs = sys.modules["torch"].nn.Parameter.__mro__
    for owner in kind.__mro__:
        if owner in torchs or any(is_class_of(owner, library) for library in _LIBRARIES):
            continue
        for name, value in vars(owner).items():
            is_code = callable(value) or hasattr(value, "__get__")
            if is_code and name not in _HARMLESS and any(hasattr(base, name) for base in torchs[:-1]):
                yield name
