"""Outputs of batches, on the host and joined as transformers joins them: tensors, or what holds tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

PADDING = -100
Array = npt.NDArray[Any]
Nested: TypeAlias = "Array | tuple[Nested, ...] | list[Nested] | Mapping[str, Nested]"
# What a hook keeps of a batch, before its tensors are arrays.
Kept: TypeAlias = "torch.Tensor | tuple[Kept, ...] | list[Kept] | Mapping[str, Kept]"


def to_host(kept: Kept, batch: int) -> Nested:
    """`kept` of a batch of as many rows with arrays for tensors; bfloat16 becomes float32.

    kept: a tensor, or a tuple, list or mapping of such. ValueError unless each has a row for each of the
    batch.
    """
    if isinstance(kept, tuple | list):
        kind: type = type(kept)
        made: Nested = kind(to_host(part, batch) for part in kept)
        return made
    if isinstance(kept, Mapping):
        return {name: to_host(part, batch) for name, part in kept.items()}
    if not isinstance(kept, torch.Tensor) or kept.dim() == 0 or len(kept) != batch:
        got = list(kept.shape) if isinstance(kept, torch.Tensor) else type(kept).__name__
        raise ValueError(
            f"preprocess_logits_for_metrics: expected tensors with {batch} rows, one a conversation of "
            f"the batch, got {got}"
        )
    values = kept.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def row_bytes(arrays: Nested) -> int:
    """Return the bytes of a row of the batch `arrays`."""
    return sum(array.nbytes // max(len(array), 1) for array in leaves(arrays))


def leaves(arrays: Nested) -> list[Array]:
    """Yield the arrays within nested lists, tuples and dictionaries."""
    if isinstance(arrays, np.ndarray):
        return [arrays]
    parts = arrays.values() if isinstance(arrays, Mapping) else arrays
    return [leaf for part in parts for leaf in leaves(part)]


def head_of(arrays: Nested, rows: int) -> Nested:
    """Return the first `rows` rows of each array."""
    return _each(lambda parts: parts[0][:rows], [arrays])


def joined(batches: Sequence[Nested]) -> Nested:
    """Join the rows of `batches`; rows shorter in the second dimension are filled up with -100.

    ValueError for batches of which one has other parts, or other dimensions after the second.
    """
    return _each(joined_arrays, batches)


def _each(merge: Callable[[Sequence[Array]], Array], batches: Sequence[Any]) -> Nested:
    first = batches[0]
    if isinstance(first, np.ndarray):
        return merge(batches)
    if any(type(batch) is not type(first) or len(batch) != len(first) for batch in batches):
        raise ValueError(
            "preprocess_logits_for_metrics: expected the same parts of every batch, got "
            f"{', '.join(sorted({f'{type(batch).__name__} of {len(batch)}' for batch in batches}))}"
        )
    if isinstance(first, Mapping):
        return {name: _each(merge, [batch[name] for batch in batches]) for name in first}
    kind: type = type(first)
    made: Nested = kind(_each(merge, list(parts)) for parts in zip(*batches, strict=True))
    return made


def joined_arrays(arrays: Sequence[Array]) -> Array:
    """Join arrays as `joined` does."""
    first = arrays[0]
    if any(array.ndim != first.ndim or array.shape[2:] != first.shape[2:] for array in arrays):
        raise ValueError(
            "preprocess_logits_for_metrics: expected the same shape of every batch but for rows and tokens, "
            f"got {sorted({array.shape[1:] for array in arrays})} a row"
        )
    if first.ndim > 1:
        width = max(array.shape[1] for array in arrays)
        arrays = [widened(torch.from_numpy(array), width).numpy() for array in arrays]
    return np.concatenate(arrays)


def widened(values: torch.Tensor, width: int) -> torch.Tensor:
    """`values` [rows, tokens, ...] with `width` tokens: -100 for those that are not there."""
    if values.shape[1] == width:
        return values
    result = values.new_full((len(values), width, *values.shape[2:]), PADDING)
    result[:, : values.shape[1]] = values
    return result
