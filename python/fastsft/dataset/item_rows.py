"""One item of a data set as a row of a native TokenDataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def append_item(native: Any, item: Any, row: int) -> int:
    """Add `item` to the _C.TokenDataset `native`, without its padding; its length with padding is returned.

    item: a mapping with `input_ids`, `labels` (-100 or the ids, not shifted) and perhaps `attention_mask`,
    each [length]. row: its number, for messages. ValueError for an item without these
    keys or of other shapes.
    """
    ids, labels = _ids_and_labels(item, row)
    size = _real_length(item, ids, labels, row)
    native.append(ids[:size].astype(np.int32), _learned_spans(ids[:size], labels[:size], row))
    return len(ids)


def _ids_and_labels(item: Any, row: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    missing = [name for name in ("input_ids", "labels") if name not in item]
    if missing:
        raise ValueError(f"row {row}: expected input_ids and labels, got {', '.join(map(str, item))}")
    ids, labels = np.asarray(item["input_ids"]), np.asarray(item["labels"])
    if ids.ndim != 1 or ids.shape != labels.shape:
        raise ValueError(
            f"row {row}: expected input_ids and labels of one length, got {list(ids.shape)} and "
            f"{list(labels.shape)}"
        )
    return ids, labels


def _real_length(item: Any, ids: npt.NDArray[Any], labels: npt.NDArray[Any], row: int) -> int:
    mask = (
        np.asarray(item["attention_mask"]).astype(bool)
        if "attention_mask" in item
        else np.ones(len(ids), bool)
    )
    kept = np.flatnonzero(mask | (labels != -100))
    if len(kept) and not mask[0]:
        raise ValueError(
            f"row {row}: padded on the left; fastsft trains right-padded items, use --padding_side right"
        )
    return int(kept[-1]) + 1 if len(kept) else 0


def _learned_spans(ids: npt.NDArray[Any], labels: npt.NDArray[Any], row: int) -> list[tuple[int, int]]:
    learned = labels != -100
    if not np.array_equal(ids[learned], labels[learned]):
        at = int(np.flatnonzero(learned & (ids != labels))[0])
        raise ValueError(
            f"row {row}: expected label {at} to be -100 or the id {ids[at]}, got {labels[at]}; "
            "labels are not shifted"
        )
    edges = np.flatnonzero(np.diff(np.concatenate(([0], learned.astype(np.int8), [0]))))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
