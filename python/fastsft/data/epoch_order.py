"""Determine the order in which an epoch visits the rows (docs/spec/trainer_semantics.md, section 3).

`epoch_order` is for native rows, whose lengths are known. The other functions order any data set. They draw
the same random numbers as the samplers of transformers' Trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.collators import OF_FORWARD
from fastsft.data.interfaces import SizedDataset, is_table
from fastsft.data.token_rows import TokenRows, check_sized

_LARGEST_MEGABATCH = 50  # most batches (of all rows that a rank accumulates in a step) in a megabatch


def epoch_order(args: TrainingArguments, rows: TokenRows, epoch: int) -> npt.NDArray[np.int64]:
    """Return the row numbers in the order in which `epoch` visits them (--train_sampling_strategy)."""
    if args.train_sampling_strategy == "sequential":
        return np.arange(len(rows), dtype=np.int64)
    if args.train_sampling_strategy == "group_by_length":
        permuted = _global_permutation(args.seed, len(rows), epoch)
        batch = args.train_batch_size * args.gradient_accumulation_steps
        return grouped_by_length(permuted, rows.item_lengths(args.length_column_name), batch)
    return _C.epoch_order(len(rows), args.order_seed, epoch)


def _global_permutation(seed: int, size: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the permutation that torch's global generator draws in `epoch`.

    In each epoch, the data loader draws a seed from the generator before the permutation is drawn.
    """
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
    """Divide `permuted` into megabatches, and sort each by length, longest first.

    The longest row of all then changes places with the first row. permuted: row numbers. lengths: token count
    of each row. batch: row count that a rank accumulates in a step. See docs/spec/trainer_semantics.md,
    section 3.4.
    """
    size = batch * max(1, min(len(permuted) // (4 * batch), _LARGEST_MEGABATCH))
    parts: list[Any] = [permuted[first : first + size] for first in range(0, len(permuted), size)]
    parts = [part[np.argsort(-lengths[part], kind="stable")] for part in parts]
    longest = int(np.argmax([lengths[part[0]] for part in parts]))
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return np.concatenate(parts)


Order = Callable[[int], npt.NDArray[np.int64]]


def training_order(args: TrainingArguments, dataset: SizedDataset, processing_class: object) -> Order:
    """Return a function that returns the row order of each training epoch.

    For an order by length, this call reads every item once. ValueError if an item has no token ids.
    """
    if args.train_sampling_strategy == "sequential":
        return lambda epoch: np.arange(len(dataset), dtype=np.int64)
    if args.train_sampling_strategy == "group_by_length":
        batch = args.train_batch_size * args.gradient_accumulation_steps
        return _grouped(read_lengths(args, dataset, processing_class), batch)
    seed = args.order_seed
    return lambda epoch: _C.epoch_order(len(dataset), seed, epoch)


def evaluation_order(args: TrainingArguments, dataset: SizedDataset, processing_class: object) -> Order:
    """Return a function that returns the row order of an evaluation: unchanged, or by length."""
    if args.train_sampling_strategy == "group_by_length":
        return _grouped(read_lengths(args, dataset, processing_class), args.eval_batch_size)
    return lambda epoch: np.arange(len(dataset), dtype=np.int64)


def _grouped(lengths: npt.NDArray[np.int64], batch: int) -> Order:
    return lambda epoch: grouped_by_length(torch.randperm(len(lengths)).numpy(), lengths, batch)


def read_lengths(
    args: TrainingArguments, dataset: SizedDataset, processing_class: object
) -> npt.NDArray[np.int64]:
    """Return each item's token count, read as by transformers' LengthGroupedSampler."""
    if is_table(dataset) and args.length_column_name in dataset.column_names:
        return np.asarray(dataset[args.length_column_name], dtype=np.int64)
    names = getattr(processing_class, "model_input_names", None) or ["input_ids"]
    if not hasattr(dataset[0], "keys") or names[0] not in dataset[0]:
        raise ValueError(
            f"--group_by_length: expected items with {names[0]}, got {type(dataset).__name__} of others; "
            "leave --group_by_length out, or give rows of ids"
        )
    return np.asarray([len(item[names[0]]) for item in iter(dataset)], dtype=np.int64)


def as_read(args: TrainingArguments, dataset: object) -> SizedDataset:
    """Return `dataset` as transformers passes it to a loader.

    Unused columns of a datasets.Dataset are removed; the transform of the data set does not see them, either.
    ValueError if no column is left, and as in `check_sized`.
    """
    if not args.remove_unused_columns or not is_table(dataset):
        return check_sized(dataset)
    ignored = [name for name in dataset.column_names if name not in OF_FORWARD]
    if ignored and len(ignored) == len(dataset.column_names):
        raise ValueError(
            f"the data set has the columns {', '.join(ignored)}, and a model takes none of them; with "
            "--remove_unused_columns False a transform gets them all"
        )
    return dataset.remove_columns(ignored)
