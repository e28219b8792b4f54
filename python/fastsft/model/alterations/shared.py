"""Parameters that are one tensor in several places: the engine ties head and embedding, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import Alteration, path_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_Range = tuple[str, int, int, str, "torch.Tensor"]  # device, first byte, end, path, parameter
_HEAD, _TABLE = "model.lm_head.weight", "model.model.embed_tokens.weight"
_COPY = "copy the module (copy.deepcopy), or train with transformers' Trainer"


def shared_parameters(model: PreTrainedModel) -> Iterator[Alteration]:
    """Weights in the memory of others or of themselves, and a head tied or not against the configuration."""
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
    """Of every two parameters whose bytes overlap the later one; tied weights are one parameter."""
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
    widest = None  # of those so far, the one that ends last
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
        "tie them (model.config.tie_word_embeddings = True and model.tie_weights()), or copy the tensor"
        if is_pair else _COPY,
    )  # fmt: skip


def _overlaps_itself(parameter: torch.Tensor) -> bool:
    """True if two elements may have one place: a stride that steps into what is below it."""
    reached = 0
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1:
            if stride <= reached:
                return True
            reached += stride * (size - 1)
    return False


def _bytes_of(parameter: torch.Tensor) -> tuple[int, int]:
    """The first byte of its elements, and the one after the last."""
    last = sum(stride * (size - 1) for stride, size in zip(parameter.stride(), parameter.shape, strict=True))
    first = parameter.data_ptr()
    return first, first + (last + 1) * parameter.element_size()
