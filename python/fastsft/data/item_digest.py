"""A digest of the items of a data set that is not fastsft's, where reading them runs nobody's code."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Iterable, Iterator
from typing import Any

from fastsft.data.interfaces import is_plain_list, is_table

_WITHOUT_REFERENCES = 0  # marshal's form in which equal values have equal bytes, whoever else holds them


def fingerprint_of(dataset: object) -> str | None:
    """Name of a datasets.Dataset's content; others may have the same content. None of another data set."""
    return str(getattr(dataset, "_fingerprint", None)) if is_table(dataset) else None


def digest_of_items(dataset: object) -> str | None:
    """Of lists and tuples of plain values and of datasets.Dataset, before its transform; else None.

    Plain are numbers, texts, bytes, None, arrays and tensors, and dictionaries, lists and tuples of them.
    """
    items: Iterable[Any]
    if is_table(dataset):
        items = dataset.with_format(None)
    elif is_plain_list(dataset):
        items = dataset
    else:
        return None
    hasher = hashlib.blake2b(digest_size=8)
    try:
        for item in items:
            for part in _parts(item):
                hasher.update(part)
    except (TypeError, RecursionError):
        return None
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """The bytes of a value; TypeError for what is not plain."""
    try:
        yield marshal.dumps(value, _WITHOUT_REFERENCES)
        return
    except ValueError:  # something in it is an array, a tensor or not plain
        pass
    if type(value) is dict or type(value).__name__ == "BatchEncoding":
        yield marshal.dumps(list(value), _WITHOUT_REFERENCES) if _are_texts(value) else _refuse(value)
        for item in value.values():
            yield from _parts(item)
    elif type(value) in (list, tuple):
        yield f"{type(value).__name__} of {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    else:
        yield _array_bytes(value)


def _are_texts(keys: Iterable[object]) -> bool:
    return all(type(key) is str for key in keys)


def _array_bytes(value: object) -> bytes:
    import numpy as np
    import torch

    if type(value) is torch.Tensor:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{list(value.shape)} {value.dtype}".encode() + flat.numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return f"{value.shape} {value.dtype}".encode() + value.tobytes()
    return _refuse(value)


def _refuse(value: object) -> bytes:
    raise TypeError(f"{type(value).__name__} is not plain")
