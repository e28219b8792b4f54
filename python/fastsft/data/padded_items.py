"""Batches as a model of transformers gets them, padding included: what it gives there can be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.item_rows import append_padded
from fastsft.data.item_rules import LABELS, ItemRules

_IGNORED = -100
_FILLING = {"attention_mask": 0, "position_ids": 0} | dict.fromkeys(LABELS, _IGNORED)


class PaddedBatch(NamedTuple):
    """native: rows of equal length with all their tokens; labels [rows, tokens], or None without any."""

    native: _C.TokenDataset
    labels: npt.NDArray[np.int64] | None
    width: int

    @classmethod
    def of(cls, items: Sequence[Any], numbers: Sequence[int], rules: ItemRules | None) -> PaddedBatch:
        """Of `items` of one length. numbers: theirs in the data set. ValueError as `append_padded`."""
        native = _C.TokenDataset()
        rows = [append_padded(native, item, row, rules) for item, row in zip(items, numbers, strict=True)]
        labels = [labels for labels in rows if labels is not None]
        width = int(native.lengths().max()) if len(native) else 0
        return cls(native, np.stack(labels) if labels else None, width)


def padded_to_longest(items: list[Any], tokenizer: object) -> list[Any]:
    """`items` of a batch filled up to the longest, as a tokenizer pads.

    tokenizer: its pad token and side, and it gives each row a mask; None: id 0, on the right. What has no ids
    stays.
    """
    if any(not isinstance(item, Mapping) or item.get("input_ids") is None for item in items):
        return items
    lengths = [np.asarray(item["input_ids"]).size for item in items]
    if len(set(lengths)) <= 1 and tokenizer is None:
        return items
    longest, pad_id = max(lengths), getattr(tokenizer, "pad_token_id", None) or 0
    left = getattr(tokenizer, "padding_side", "right") == "left"
    masked = {} if tokenizer is None else {"attention_mask": None}
    return [
        _filled({**masked, **item}, length, longest, pad_id, left)
        for item, length in zip(items, lengths, strict=True)
    ]


def _filled(item: Mapping[str, Any], length: int, longest: int, pad_id: int, left: bool) -> dict[str, Any]:
    filled = dict(item)
    if filled.get("attention_mask", 0) is None:
        filled["attention_mask"] = np.ones(length, np.int64)
    around = (longest - length, 0) if left else (0, longest - length)
    for name, value in filled.items():
        if value is not None and (name == "input_ids" or name in _FILLING):
            filled[name] = np.pad(np.asarray(value), around, constant_values=_FILLING.get(name, pad_id))
    return filled
