"""The rows of a native TokenDataset as arrays, to be pickled with the data set that holds them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastsft import _C


class PackedRows(NamedTuple):
    """`ids` int32 of all rows, row i from `starts[i]` to `starts[i + 1]`; `spans`: learned ones, by row.

    `masked_id`: as TokenDataset has it.
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    spans: list[list[tuple[int, int]]]
    masked_id: int


def packed_rows(native: _C.TokenDataset) -> PackedRows:
    """Of labelled conversations: rows of ids and learned spans alone."""
    rows = range(len(native))
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(native.lengths(), dtype=np.int64)])
    ids = [np.zeros(0, dtype=np.int32), *(native.ids(row) for row in rows)]
    return PackedRows(np.concatenate(ids), starts, [native.learned(row) for row in rows], native.masked_id)


def unpacked_rows(packed: PackedRows) -> _C.TokenDataset:
    """A TokenDataset of the same rows."""
    native = _C.TokenDataset()
    for (begin, end), spans in zip(pairwise(packed.starts), packed.spans, strict=True):
        native.append(packed.ids[begin:end], spans)
    native.masked_id = packed.masked_id
    return native
