"""Packing: a micro-batch as one row without padding, in which each conversation attends only to itself.

transformers looks up attention and mask functions in tables, by the implementation's name. `packed` replaces
that name by a string that compares equal but has another hash. The model's code takes the same branches as
before, and the tables return this file's functions. They call the model's own functions for each
conversation, which apply the model's windows, caps and scales.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fastsft.model.generic.padding import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IMPLEMENTATIONS = ("sdpa", "eager")  # other implementations find packed sequences' bounds themselves


class NotPackedError(RuntimeError):
    """Error for a model that does not compute attention or masks through this file's functions."""


@dataclass(frozen=True)
class PackedBatch:
    """A micro-batch as one row: input_ids, attention_mask and position_ids [1, tokens].

    token_indices: where the micro-batch's tokens are in the row. lengths: each conversation's tokens.
    ends: int32 [conversations + 1], as cu_seqlens. is_whole: True if no token is masked.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    token_indices: torch.Tensor
    lengths: list[int]
    ends: torch.Tensor
    is_whole: bool

    @classmethod
    def of(cls, batch: Rows) -> PackedBatch:
        """Pack a micro-batch. A rank without rows gets two tokens without labels."""
        ids, ends, bounds = batch.input_ids, batch.cu_seqlens, batch.boundaries
        token_indices = numbers = torch.arange(len(ids), device=ids.device)
        if not len(ids):
            ids, bounds = ids.new_zeros(2), [0, 2]
            numbers = torch.arange(2, device=ids.device)
            ends = 2 * numbers.int()
        lengths = [end - begin for begin, end in pairwise(bounds)]
        is_whole = not (len(batch.input_ids) and batch.is_key.numel())
        mask = torch.ones_like(ids) if is_whole else batch.is_key.to(ids.dtype)
        begins = torch.repeat_interleave(ends[:-1], ends.diff(), output_size=len(ids))
        return cls(
            ids[None], mask[None], (numbers - begins)[None], token_indices,
            [length for length in lengths if length], ends, is_whole,
        )  # fmt: skip

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the model's arguments, for a call within `packed`."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids,
        }


class _Name(str):
    """A name that equals the name of the model's implementation, but is another key in the tables."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(("fastsft_packed", str(self)))

    def __ne__(self, other: object) -> bool:
        # Transformers 4 looks eager attention up in the table only if the name is unequal to "eager".
        return True


class Masks:
    """The masks that transformers makes, one for each conversation.

    A model may only pass the object on. Any other use raises NotPackedError.
    """

    def __init__(self, batch: PackedBatch, masks: list[object], implementation: str) -> None:
        self.lengths, self.ends = batch.lengths, batch.ends
        self.masks, self.implementation = masks, implementation

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse_use()

    @classmethod
    def __torch_function__(cls, *given: object) -> NoReturn:
        _refuse_use()


def _refuse_use(*given: object) -> NoReturn:
    raise NotPackedError("the model computes with attention masks itself")


for _operator in (
    *("bool", "len", "iter", "getitem", "eq", "ne", "lt", "le", "gt", "ge", "invert", "neg"),
    *("add", "radd", "sub", "rsub", "mul", "rmul", "and", "rand", "or", "ror"),
):
    setattr(Masks, f"__{_operator}__", _refuse_use)


@contextmanager
def packed(model: PreTrainedModel, batch: PackedBatch) -> Iterator[None]:
    """Make `model` compute the packed `batch` in this context. Backward may run after the context."""
    _register()
    config = model.config
    implementation = config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        raise NotPackedError(f"its attention is {implementation}")
    _state[:] = [(batch, implementation)]
    config._attn_implementation = _Name(implementation)
    try:
        yield
    finally:
        config._attn_implementation = implementation
        _state.clear()


# The current pass's batch, and the name of the model's implementation.
_state: list[tuple[PackedBatch, str]] = []


@cache
def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for name in map(_Name, IMPLEMENTATIONS):
        ALL_ATTENTION_FUNCTIONS.register(name, _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, _make_masks)


def _make_masks(**given: object) -> Masks:
    """Make all conversations' masks. An entry of ALL_MASK_ATTENTION_FUNCTIONS."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ((batch, implementation),) = _state
    make = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    # By length, because equally long conversations have equal masks if no token is masked.
    made: dict[int, object] = {}
    masks = []
    for length, keys in zip(
        batch.lengths, torch.split(batch.attention_mask, batch.lengths, dim=1), strict=True
    ):
        if not batch.is_whole or length not in made:
            made[length] = make(**_for_conversation(given, length, None if batch.is_whole else keys.bool()))
        masks.append(made[length])
    return Masks(batch, masks, implementation)


def _for_conversation(given: dict[str, Any], length: int, mask: torch.Tensor | None) -> dict[str, Any]:
    changed = {"batch_size": 1, "kv_length": length, "attention_mask": mask}
    if "cache_position" in given:
        changed["cache_position"] = torch.arange(length, device=given["cache_position"].device)
    if "q_length" in given:
        changed["q_length"] = length
    return {**given, **changed}


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention within each conversation. An entry of ALL_ATTENTION_FUNCTIONS.

    query, key, value: [1, heads, tokens, size].
    """
    if not isinstance(attention_mask, Masks):
        raise NotPackedError("its attention masks are made by the model itself")
    lengths = attention_mask.lengths
    if {tensor.shape[2] for tensor in (query, key, value)} != {sum(lengths)}:
        raise NotPackedError("its attention reads other tokens than those of the row")
    attend = _own_function(module, attention_mask.implementation)
    # Some models derive is_causal from `mask is None`, which is wrong for a Masks object.
    if "is_causal" in options:
        options["is_causal"] = None
    if _is_one_flash_call(attend, module, (query, key, value), attention_mask, options):
        return _attend_by_flash(query, key, value, attention_mask, options.get("scaling")), None
    parts = zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs = [
        attend(module, *part, mask, **options)[0]
        for part, mask in zip(parts, attention_mask.masks, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def _is_one_flash_call(
    attend: object, module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], masks: Masks,
    options: dict[str, object],
) -> bool:  # fmt: skip
    """Return True if FlashAttention 2 computes all conversations as `attend` does, in one call.

    This kernel needs a GPU of compute capability 8 or later, half precision, and causal attention without
    windows or dropout.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    (device,) = {tensor.device for tensor in tensors}
    if device.type != "cuda" or attend is not sdpa_attention_forward:
        return False
    sizes, dtypes = {tensor.shape[-1] for tensor in tensors}, {tensor.dtype for tensor in tensors}
    return (
        torch.cuda.get_device_capability(device)[0] >= 8
        and dtypes in ({torch.bfloat16}, {torch.float16})
        and len(sizes) == 1 and max(sizes) <= 256 and max(sizes) % 8 == 0
        and not options.get("dropout") and getattr(module, "is_causal", True) is True
        and not any(options.get(name) is not None for name in ("softcap", "position_bias", "s_aux"))
        and all(tensor.stride(-1) == 1 for tensor in tensors)
        and all(mask is None for mask in masks.masks)
    )  # fmt: skip


def _attend_by_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, masks: Masks, scale: Any
) -> torch.Tensor:
    """Compute causal attention within each conversation. Return [1, tokens, heads, size]."""
    from torch.nn.attention.varlen import varlen_attn

    rows, longest = masks.ends, max(masks.lengths)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = varlen_attn(query, key, value, rows, rows, longest, longest, scale=scale, window_size=(-1, 0))
    assert isinstance(out, torch.Tensor)  # a tuple only if more is asked for
    return out[None]


def _own_function(module: torch.nn.Module, implementation: str) -> Callable[..., tuple[torch.Tensor, object]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation != "eager":
        return ALL_ATTENTION_FUNCTIONS[implementation]  # type: ignore[no-any-return]
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        raise NotPackedError("its attention is a method of its own")
    return own  # type: ignore[no-any-return]
