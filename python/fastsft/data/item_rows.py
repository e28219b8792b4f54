"""Convert a data set's items to native rows by the rules of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.item_rules import LABELS, ItemRules

_IGNORED = -100


def append_item(native: _C.TokenDataset, item: object, row: int, rules: ItemRules | None = None) -> int:
    """Add `item` without its padding to the _C.TokenDataset `native`, and return its length with padding.

    item: a mapping, or an object with attributes, whose values are tensors, arrays or lists [length]. Its
    keys are `input_ids`, `labels` (or `label_ids` or `label`; not shifted, and -100 at positions that are not
    learned), and optionally `attention_mask` (0 hides a token from all tokens; a short mask is extended with
    0, a long mask is cut) and `position_ids`. row: the item's row number for messages. rules: the rules of
    the Trainer that reads the item; by default the keys above are read, and other keys are silently dropped.
    If the rules need no labels, an item without labels has no targets.

    ValueError if an item has no ids or labels, if shapes do not match, or if training with fastsft would not
    give the result of transformers.
    """
    rules = rules or ItemRules(is_quiet=True)
    item = _mapping(item, row, rules)
    columns = rules.columns_of(item, row)
    ids, labels = _ids_and_labels(item, columns, row, rules)
    needs = native.append_item(
        ids,
        labels,
        _positions(item["position_ids"], len(ids), row) if "position_ids" in columns else None,
        _mask(item["attention_mask"], row) if "attention_mask" in columns else None,
        has_mask=rules.adds_mask,
        row=row,
    )
    rules.check(needs, learns_first=len(labels) > 0 and labels[0] != _IGNORED, row=row)
    return len(ids)


def append_padded(
    native: _C.TokenDataset, item: object, row: int, rules: ItemRules | None = None
) -> npt.NDArray[np.int64] | None:
    """Add all tokens of `item`, including padding, to `native`, and return its labels.

    Used if the caller needs outputs at every token. Arguments are as in `append_item`. None for an item
    without labels. ValueError as in `append_item`, and if the outputs of the model's attention at padding
    differ from the engine's.
    """
    rules = rules or ItemRules(is_quiet=True)
    item = _mapping(item, row, rules)
    columns = rules.columns_of(item, row)
    ids, labels = _ids_and_labels(item, columns, row, rules)
    mask = _mask(item["attention_mask"], row) if "attention_mask" in columns else None
    needs = native.append_item(
        ids,
        ids,  # all ids are labels, so that no token is dropped
        _positions(item["position_ids"], len(ids), row) if "position_ids" in columns else None,
        mask,
        has_mask=rules.adds_mask,
        row=row,
    )
    hides = mask is not None and not mask[: len(ids)].all()
    rules.check_outputs(hides=hides, blind=needs.blind_query, row=row)
    return np.asarray(labels, dtype=np.int64) if rules.label_of(columns) is not None else None


def _mapping(item: object, row: int, rules: ItemRules) -> Mapping[str, Any]:
    """Return the item as a mapping with the keys and values that transformers reads.

    If columns are removed and the item's class is derived from dict, transformers reads its `items()`.
    """
    if not isinstance(item, Mapping):
        return _attributes(item, row)
    if rules.removes_columns and isinstance(item, dict) and type(item) is not dict:
        return dict(item.items())
    return item


def _ids_and_labels(
    item: Mapping[str, Any], columns: tuple[str, ...], row: int, rules: ItemRules
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    name = rules.label_of(columns)
    if "input_ids" not in columns or (name is None and rules.needs_labels):
        raise ValueError(
            f"row {row}: expected input_ids and labels, got {', '.join(map(str, item))}; labels are the ids "
            f"themselves, -100 where nothing is learned{_of_other_keys(columns, rules)}"
        )
    if isinstance(item["input_ids"], str):
        raise TypeError(f"row {row}: input_ids: expected numbers, got a text; the tokenizer makes ids of it")
    ids = _array(item["input_ids"])
    labels = np.full(ids.shape, _IGNORED) if name is None else _array(item[name])
    if ids.ndim != 1 and ids.dtype != object:
        raise ValueError(
            f"row {row}: expected input_ids of one dimension, got the shape {list(ids.shape)}; an item is "
            "one row, as in input_ids[0]"
        )
    if ids.ndim != 1 or ids.shape != labels.shape:
        raise ValueError(
            f"row {row}: expected input_ids and labels of one length, got {list(ids.shape)} and "
            f"{list(labels.shape)}; a label stands for each id, -100 where nothing is learned"
        )
    _check_integers("input_ids", ids, row)
    _check_integers(name or "labels", labels, row)
    return ids, labels


def _of_other_keys(columns: tuple[str, ...], rules: ItemRules) -> str:
    others = [name for name in LABELS if name in columns and name not in rules.label_keys]
    return f"; the data_collator takes no {', '.join(others)}" if others else ""


def _attributes(item: object, row: int) -> Mapping[str, Any]:
    try:
        return dict(vars(item))
    except TypeError:
        raise ValueError(
            f"row {row}: expected a mapping with input_ids and labels, got {type(item).__name__}; give "
            '{"input_ids": [...], "labels": [...]}'
        ) from None


def _array(value: object) -> npt.NDArray[Any]:
    """Convert `value` to an array. If lists in `value` differ in length, the array has the dtype object."""
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError):  # raised for a tensor on a GPU or with requires_grad
        if not hasattr(value, "detach"):
            raise
        return np.asarray(value.detach().cpu())
    except ValueError:  # raised for lists of different lengths
        return np.asarray(value, dtype=object)


def _check_integers(name: str, values: npt.NDArray[Any], row: int) -> None:
    if values.dtype.kind not in "iub" and values.size:
        raise ValueError(
            f"row {row}: expected integers in {name}, got {values.dtype}; ids of tokens are whole "
            "numbers, in a list or a tensor of one dimension"
        )


def _positions(value: object, length: int, row: int) -> npt.NDArray[Any]:
    positions = _array(value)
    if positions.shape != (length,):
        raise ValueError(
            f"row {row}: expected position_ids of the length of input_ids, [{length}], got "
            f"{list(positions.shape)}; give each token its position, or leave position_ids out"
        )
    _check_integers("position_ids", positions, row)
    return positions


def _mask(value: object, row: int) -> npt.NDArray[Any]:
    """Return a bool array [length] that is True for each token to which other tokens may attend."""
    mask = _array(value)
    if mask.ndim != 1 or mask.dtype.kind not in "iubf":
        raise ValueError(
            f"row {row}: expected an attention_mask with one number a token, got shape {list(mask.shape)}, "
            f"{mask.dtype}; attention is causal here: sequences of a row are kept apart by position_ids "
            "that restart, without a mask"
        )
    seen: npt.NDArray[Any] = mask != 0
    if mask.dtype.kind == "f" and not np.array_equal(mask, seen):
        raise ValueError(
            f"row {row}: expected 0 and 1 in attention_mask, got {mask[~np.isin(mask, (0, 1))][0]}; what is "
            "added to scores is not taken"
        )
    return seen


_FILLING = {"attention_mask": 0, "position_ids": 0} | dict.fromkeys(LABELS, _IGNORED)


class PaddedBatch(NamedTuple):
    """A batch of rows with padding, all with the same length.

    native: the rows with all their tokens. labels: [rows, width], or None if the items have no labels. width:
    tokens per row.
    """

    native: _C.TokenDataset
    labels: npt.NDArray[np.int64] | None
    width: int

    @classmethod
    def of(cls, items: Sequence[Any], numbers: Sequence[int], rules: ItemRules | None) -> PaddedBatch:
        """Make a batch of items with the same length.

        numbers: the items' row numbers. ValueError as in `append_padded`.
        """
        native = _C.TokenDataset()
        rows = [append_padded(native, item, row, rules) for item, row in zip(items, numbers, strict=True)]
        labels = [labels for labels in rows if labels is not None]
        width = int(native.lengths().max()) if len(native) else 0
        return cls(native, np.stack(labels) if labels else None, width)


def padded_to_longest(items: list[Any], tokenizer: object) -> list[Any]:
    """Pad the items of a batch to the length of the longest item, as a tokenizer pads.

    tokenizer: the tokenizer whose pad token and padding side are used; each item then gets an attention mask.
    None: pad with id 0 on the right, without a mask. If any item has no input_ids, all items are returned
    unchanged.
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
