"""Checks a given model's tensors: their classes, their memory, and, at a save, their shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fastsft.model.alterations.alteration import Alteration, path_of
from fastsft.originals.classes import is_class_of
from fastsft.originals.functions import described

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

# Libraries whose tensor classes store and move weights, but compute nothing.
_LIBRARIES = ("torch", "transformers", "accelerate", "bitsandbytes", "deepspeed", "peft")
# Methods that create, print or copy a tensor.
_HARMLESS = {
    "__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__format__", "__hash__", "__dir__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
}  # fmt: skip
_NATIVE = "with torch.nn.Parameter and torch.Tensor"
_WAY_OUT = "give the module a torch.nn.Parameter of its data, or train with transformers' Trainer"
_HEAD, _TABLE = "model.lm_head.weight", "model.model.embed_tokens.weight"
_TIE = "tie them (model.config.tie_word_embeddings = True and model.tie_weights()), or copy the tensor"
_COPY = "copy the module (copy.deepcopy), or train with transformers' Trainer"
# Device, first byte's address, address after the last byte, path, parameter.
_Range = tuple[str, int, int, str, "torch.Tensor"]


def other_classes(model: nn.Module) -> Iterator[Alteration]:
    """Yield parameters and buffers whose class overrides a torch method that may compute."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        for where in _hiding(type(tensor)):
            found = f"is of {described(type(tensor))}, which has its own {where}"
            yield Alteration(path_of(name), found, _NATIVE, _WAY_OUT)
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


def shared_parameters(model: PreTrainedModel) -> Iterator[Alteration]:
    """Yield weights that share memory.

    The engine ties only head and embedding, if the configuration says so.
    """
    yield from _overlapping(model)
    table, head = getattr(model.model.embed_tokens, "weight", None), getattr(model.lm_head, "weight", None)
    said = bool(model.config.tie_word_embeddings)
    if table is not None and head is not None and (table is head) != said:
        state = "is" if table is head else "is not"
        yield Alteration(
            _HEAD, f"{state} the tensor of model.model.embed_tokens",
            f"{'tied' if said else 'separate'} weights, as model.config.tie_word_embeddings {said} says",
            f"set model.config.tie_word_embeddings = {not said}, or "
            f"{'call model.tie_weights()' if said else 'copy the tensor'}",
        )  # fmt: skip


def _overlapping(model: PreTrainedModel) -> Iterator[Alteration]:
    """Yield each parameter that overlaps an earlier parameter in memory.

    Tied weights are a single parameter.
    """
    ranges = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta or not parameter.numel():
            continue
        where = path_of(name.replace("_orig_mod.", ""))
        if _overlaps_itself(parameter):
            yield Alteration(
                where, f"has elements that share their memory (strides {list(parameter.stride())})",
                "an own number for each element", "give it a tensor of its own (tensor.clone())",
            )  # fmt: skip
        first, last = _bytes_of(parameter)
        ranges.append((str(parameter.device), first, last, where, parameter))
    ranges.sort(key=lambda each: each[:2])
    widest = None  # the range with the largest end address so far
    for each in ranges:
        if widest is not None and each[0] == widest[0] and each[1] < widest[2]:
            yield from _shared(each, widest)
        if widest is None or each[0] != widest[0] or each[2] > widest[2]:
            widest = each


def _shared(each: _Range, other: _Range) -> Iterator[Alteration]:
    places = {each[3], other[3]}
    is_pair = places == {_HEAD, _TABLE}
    if is_pair and each[4] is other[4]:
        return
    where, with_ = (_HEAD, _TABLE) if is_pair else (each[3], other[3])
    yield Alteration(
        where, f"shares its memory with {with_}", "a weight for each module",
        _TIE if is_pair else _COPY,
    )  # fmt: skip


def _overlaps_itself(parameter: torch.Tensor) -> bool:
    """Return True if two elements may share memory: a stride is within the extent of smaller strides."""
    reached = 0
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1:
            if stride <= reached:
                return True
            reached += stride * (size - 1)
    return False


def _bytes_of(parameter: torch.Tensor) -> tuple[int, int]:
    """Return the memory range that holds the parameter's elements: first address and end address."""
    last = sum(stride * (size - 1) for stride, size in zip(parameter.stride(), parameter.shape, strict=True))
    first = parameter.data_ptr()
    return first, first + (last + 1) * parameter.element_size()


def check_parameters(
    named: Iterable[tuple[str, torch.Tensor]], built: Mapping[str, tuple[int, ...]], caller: str
) -> None:
    """Raise a ValueError if a parameter's shape differs from `built`.

    built: shapes by the engine's names. caller: message prefix. Buffers are not checked, because a
    save writes only parameters.
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
