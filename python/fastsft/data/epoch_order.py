"""In which order an epoch visits the rows (docs/spec/trainer_semantics.md, section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows

_LARGEST_MEGABATCH = 50  # batches


def epoch_order(args: TrainingArguments, rows: TokenRows, epoch: int) -> npt.NDArray[np.int64]:
    """Rows in the order of `epoch`: random, sequential or by length, as --train_sampling_strategy says."""
    if args.train_sampling_strategy == "sequential":
        return np.arange(len(rows), dtype=np.int64)
    if args.train_sampling_strategy == "group_by_length":
        permuted = _global_permutation(args.seed, len(rows), epoch)
        batch = args.train_batch_size * args.gradient_accumulation_steps
        return grouped_by_length(permuted, rows.item_lengths(args.length_column_name), batch)
    return _C.epoch_order(len(rows), args.order_seed, epoch)


def _global_permutation(seed: int, size: int, epoch: int) -> npt.NDArray[np.int64]:
    """Permutation by torch's global generator in `epoch`; each epoch's loader draws its own seed first."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _ in range(epoch + 1):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        permuted = torch.randperm(size, generator=generator)
    order: npt.NDArray[np.int64] = permuted.numpy()
    return order


def grouped_by_length(
    permuted: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], batch: int
) -> npt.NDArray[np.int64]:
    """`permuted` in megabatches, each sorted from long to short; the longest row of all comes first.

    batch: rows of a rank's accumulation group. Source: docs/spec/trainer_semantics.md, section 3.4.
    """
    size = batch * max(1, min(len(permuted) // (4 * batch), _LARGEST_MEGABATCH))
    parts: list[Any] = [permuted[first : first + size] for first in range(0, len(permuted), size)]
    parts = [part[np.argsort(-lengths[part], kind="stable")] for part in parts]
    longest = int(np.argmax([lengths[part[0]] for part in parts]))
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return np.concatenate(parts)
