"""A micro-batch as one row without padding: attention goes over each conversation alone.

transformers finds attention and its masks by name. The name of the functions here equals the model's own, so
that its code takes the same branches, and they call the functions of that name once a conversation: windows,
soft caps and scales stay theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from fastsft.model.generic.padding import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Those that compute with what they are given, and look for no sequences themselves.
IMPLEMENTATIONS = ("sdpa", "eager")


class NotPackedError(RuntimeError):
    """A model that computes attention or its masks elsewhere."""


@dataclass(frozen=True)
class PackedBatch:
    """One row. input_ids, attention_mask [1, tokens]; places: of each token of the batch in it.

    lengths: of the conversations. is_whole: no token is masked.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    places: torch.Tensor
    lengths: list[int]
    is_whole: bool

    @classmethod
    def of(cls, batch: Rows) -> PackedBatch:
        """Two tokens at least: ranks without rows compute them without labels."""
        ids, lengths = batch.input_ids, batch.cu_seqlens.diff().tolist()
        if not len(ids):
            ids, lengths = ids.new_zeros(2), [2]
        is_whole = not (len(batch.input_ids) and batch.is_key.numel())
        mask = torch.ones_like(ids) if is_whole else batch.is_key.to(ids.dtype)
        positions = torch.cat([torch.arange(each, device=ids.device) for each in lengths])
        places = torch.arange(len(batch.input_ids), device=ids.device)
        return cls(ids[None], mask[None], positions[None], places, [n for n in lengths if n], is_whole)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Arguments of the model, to be called in `packed`."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids,
        }


class _Name(str):
    """A model's own implementation in every comparison, and another key in the tables of functions."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(("fastsft_packed", str(self)))

    def __ne__(self, other: object) -> bool:
        return True  # transformers 4 looks eager attention up only if it is `!= "eager"`


class Masks:
    """The library's mask of each conversation. NotPackedError for every use but being handed on."""

    def __init__(self, lengths: list[int], masks: list[object], implementation: str) -> None:
        self.lengths, self.masks, self.implementation = lengths, masks, implementation

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
    """`model` computes `batch`; backward may come later."""
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


_state: list[
    tuple[PackedBatch, str]
] = []  # of the pass: the batch, and the implementation that the model had


@cache
def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for name in map(_Name, IMPLEMENTATIONS):
        ALL_ATTENTION_FUNCTIONS.register(name, _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, _make_masks)


def _make_masks(**given: object) -> Masks:
    """As a function of transformers' ALL_MASK_ATTENTION_FUNCTIONS."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ((batch, implementation),) = _state
    make = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    made: dict[int, object] = {}  # those of one length are the same where nothing is masked
    masks = []
    for length, keys in zip(
        batch.lengths, torch.split(batch.attention_mask, batch.lengths, dim=1), strict=True
    ):
        if not batch.is_whole or length not in made:
            made[length] = make(**_of_sequence(given, length, None if batch.is_whole else keys.bool()))
        masks.append(made[length])
    return Masks(batch.lengths, masks, implementation)


def _of_sequence(given: dict[str, Any], length: int, mask: torch.Tensor | None) -> dict[str, Any]:
    """Arguments of a mask of one conversation."""
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
    """As a function of transformers' ALL_ATTENTION_FUNCTIONS: query, key, value [1, heads, tokens, size]."""
    if not isinstance(attention_mask, Masks):
        raise NotPackedError("its attention masks are made by the model itself")
    lengths = attention_mask.lengths
    if {each.shape[2] for each in (query, key, value)} != {sum(lengths)}:
        raise NotPackedError("its attention reads other tokens than those of the row")
    own = _function(module, attention_mask.implementation)
    if "is_causal" in options:  # some models tell it by their mask, which is None below and not here
        options["is_causal"] = None
    parts = zip(*(torch.split(each, lengths, dim=2) for each in (query, key, value)), strict=True)
    outputs = [
        own(module, *part, mask, **options)[0] for part, mask in zip(parts, attention_mask.masks, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def _function(module: torch.nn.Module, implementation: str) -> Callable[..., tuple[torch.Tensor, object]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation != "eager":
        found: Callable[..., tuple[torch.Tensor, object]] = ALL_ATTENTION_FUNCTIONS[implementation]
        return found
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        raise NotPackedError("its attention is a method of its own")
    return own  # type: ignore[no-any-return]
