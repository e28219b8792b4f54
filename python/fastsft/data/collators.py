"""Apply a Trainer's `data_collator` to a batch, and cut off padding before the batch is packed."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from fastsft.data.item_rows import padded_to_longest
from fastsft.data.item_rules import LABELS, check_inputs, pads_left_unmasked
from fastsft.originals.classes import LIBRARIES, is_own_object, replaced_methods_of
from fastsft.originals.functions import is_written_in

# Collators that only stack or pad rows and do not change labels. Packed rows need neither, so these collators
# are not called.
_STACKING = (
    "default_data_collator", "torch_default_data_collator", "numpy_default_data_collator", "default_collate",
    "DefaultDataCollator", "DataCollatorWithPadding", "DataCollatorForSeq2Seq",
)  # fmt: skip
_PADDING = _STACKING[-2:]  # the collators that pad
_IGNORED = -100
# The keys that transformers' Trainer passes to a collator, unless --remove_unused_columns is False.
OF_FORWARD = (
    "input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels", "use_cache",
    "cache_position", "logits_to_keep", "kwargs", "label", "label_ids",
)  # fmt: skip
_COLUMNS = ("input_ids", "labels", "attention_mask", "position_ids")
_COUNTED = "num_items_in_batch"  # not checked, because transformers' Trainer computes this count itself
_TAKEN = "a key"  # replaces the value of a column that fastsft does not read


class BatchItem(NamedTuple):
    """An item without its padding. length: the item's length in tokens, with padding."""

    item: object
    length: int


# The items of a batch, or the error that a worker process returns in their place.
BatchItems = list[BatchItem] | ValueError


def collator_name(collator: object) -> str:
    """Return the collator's name, for messages."""
    return str(getattr(collator, "__name__", type(collator).__name__))


def only_stacks(collator: object) -> bool:
    """True if `collator` is None or is known to only stack and pad; it then need not be called.

    False for a collator that pads on the left without an attention mask, because tokens then attend to the
    padding. ValueError if a known collator pads labels with a value other than -100, which would be learned.
    """
    if collator is None:
        return True
    pad_label = getattr(collator, "label_pad_token_id", _IGNORED)
    if pad_label != _IGNORED:
        raise ValueError(
            f"Trainer: data_collator {collator_name(collator)} has label_pad_token_id {pad_label}: padding "
            f"would be learned; make it {_IGNORED}, or leave the collator out: fastsft pads nothing"
        )
    if pads_left_unmasked(getattr(collator, "tokenizer", None)):
        return False
    return collator_name(collator) in _STACKING and _is_of_libraries(collator)


def _is_of_libraries(collator: object) -> bool:
    """True if the collator is an unchanged collator of transformers or torch."""
    if isinstance(collator, FunctionType):
        return any(is_written_in(collator, library) for library in LIBRARIES)
    changed = [method.name for method in replaced_methods_of(getattr(collator, "tokenizer", None))]
    return is_own_object(collator, _STACKING) and not {"pad", "_pad"} & {*changed}


class Collation:
    """The `collate_fn` of a data loader, which turns a batch's items into rows.

    collator: called with the whole batch, as by transformers' Trainer, unless it only stacks or pads.
    all_columns: pass all keys of an item to the collator, not only the arguments of the model's forward.
    needs_labels: return an error for a batch without labels. keeps_padding: keep padding in the rows; a
    collator that pads is then called, too, and without a collator `tokenizer` pads the rows.
    """

    def __init__(
        self,
        collator: Callable[[list[Any]], object] | None,
        *,
        all_columns: bool = False,
        needs_labels: bool = True,
        keeps_padding: bool = False,
        tokenizer: object = None,
    ) -> None:
        is_idle = only_stacks(collator) and not (keeps_padding and collator_name(collator) in _PADDING)
        self._collator = None if is_idle else collator
        self._keeps_padding, self._tokenizer = keeps_padding, tokenizer
        self._all_columns = all_columns
        self._needed = {"input_ids", "labels"} if needs_labels else {"input_ids"}

    def __call__(self, items: list[Any]) -> BatchItems:
        """Return the batch's items, or a ValueError if the collator's result cannot be used."""
        if self._collator is not None:
            batch = self._collator([self._taken(item) for item in items])
            fault = self._fault(batch)
            if fault is not None:
                return fault
            assert isinstance(batch, Mapping)  # otherwise _fault returned an error
            items = _rows_of(batch)
        if self._keeps_padding:
            return [BatchItem(item, _length(item)) for item in padded_to_longest(items, self._tokenizer)]
        return [cut(item) for item in items]

    def _taken(self, item: object) -> object:
        if self._all_columns or not isinstance(item, dict):
            return item
        return {name: item[name] for name in item if name in OF_FORWARD}

    def _fault(self, batch: object) -> ValueError | None:
        if not isinstance(batch, Mapping) or any(batch.get(name) is None for name in self._needed):
            got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            return self._refusal(f"gives {got}, expected {' and '.join(sorted(self._needed))}")
        try:
            columns = (*_COLUMNS, _COUNTED)
            others = [name for name in batch if name not in columns and batch[name] is not None]
            check_inputs(others, f"data_collator {collator_name(self._collator)}", removed=False)
        except ValueError as error:
            return error
        shapes = {name: list(np.shape(batch[name])) for name in _columns_of(batch)}
        if any(len(shape) != 2 or shape != shapes["input_ids"] for shape in shapes.values()):
            return self._refusal(f"makes {shapes}, expected a row of equal length in each")
        return None

    def _refusal(self, reason: str) -> ValueError:
        return ValueError(
            f"Trainer: data_collator {collator_name(self._collator)} {reason}; fastsft packs rows itself: "
            "leave it out, and let the items of the data set have their final input_ids and labels"
        )


def cut(item: object) -> BatchItem:
    """Convert an item to arrays, cut after the last token that is attended to or learned.

    Keys that a model's forward does not take are kept without their values, because only the keys are checked
    later. A dict is returned as a dict, and another mapping as a UserDict, because columns are removed only
    from dicts (item_rules.py).
    """
    if not isinstance(item, Mapping) or any(item.get(name) is None for name in _COLUMNS[:2]):
        return BatchItem(item, _length(item))
    # The item is not changed, because item_rows.py reads it by its own methods.
    if isinstance(item, dict) and type(item) is not dict:
        return BatchItem(item, _length(item))
    # The item is not changed, because item_rules.py chooses from several label keys.
    if any(item.get(name) is not None for name in LABELS[1:]):
        return BatchItem(item, _length(item))
    arrays: dict[str, Any] = {
        name: _array(item[name]) if name in _COLUMNS else _name_of(item[name]) for name in item
    }
    ids, labels, mask = arrays["input_ids"], arrays["labels"], arrays.get("attention_mask")
    length = len(ids) if ids.ndim else 0
    if mask is None or ids.ndim != 1 or not ids.shape == labels.shape == mask.shape or mask.dtype == object:
        return BatchItem(_like(item, arrays), length)
    kept = np.flatnonzero((mask != 0) | (labels != _IGNORED))
    end = int(kept[-1]) + 1 if len(kept) else 0
    return BatchItem(
        _like(item, {name: _narrow(value, length, end) for name, value in arrays.items()}), length
    )


def _length(item: object) -> int:
    """Return the length of an item that `cut` does not change; 0 if it has no token ids."""
    ids = item.get("input_ids") if isinstance(item, Mapping) else getattr(item, "input_ids", None)
    return len(ids) if ids is not None and hasattr(ids, "__len__") else 0


def _like(item: Mapping[str, Any], content: dict[str, Any]) -> Mapping[str, Any]:
    return content if isinstance(item, dict) else UserDict(content)


def _array(value: object) -> object:
    """Convert `value` to an array. A value that numpy cannot convert is returned, and refused later."""
    if value is None:
        return None
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError, ValueError):
        return value


def _name_of(value: object) -> str | None:
    return None if value is None else _TAKEN


def _narrow(array: object, length: int, end: int) -> object:
    """Return the first `end` elements of an array [length], as int32 if they fit.

    A value of another shape or type is returned unchanged.
    """
    if not isinstance(array, np.ndarray) or array.shape != (length,):
        return array
    part = array[:end]
    info = np.iinfo(np.int32)
    fits = part.dtype == np.int64 and (not end or (part.min() >= info.min and part.max() <= info.max))
    return part.astype(np.int32) if fits else part.copy()


def _columns_of(batch: Mapping[str, Any]) -> list[str]:
    return [name for name in _COLUMNS if batch.get(name) is not None]


def _rows_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = {name: np.asarray(batch[name]) for name in _columns_of(batch)}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch["input_ids"]))]
