"""Make torch data loaders over a Trainer's rows, for scripts that iterate over the batches themselves.

The loaders yield the same batches in the same order as those of transformers' Trainer, and draw the same
random numbers. A script that iterates before training therefore has the same effect on the training as with
transformers. The engine does not use these loaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import worker_options
from fastsft.data.epoch_order import Order, as_read, evaluation_order, training_order
from fastsft.data.interfaces import SizedDataset

Collator = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
_PADDING = {"labels": -100, "attention_mask": 0}


class RankBatches(Sampler[list[int]]):
    """The row numbers of this rank's micro-batches in an epoch.

    num_rows: the data set's row count. order: returns the row order of an epoch; called when the first
    batch is requested, because it may draw from the global random generator.
    """

    def __init__(
        self, args: TrainingArguments, batch_size: int, drop_last: bool, num_rows: int, order: Order
    ) -> None:
        self._place = (args.data_parallel_rank, args.data_parallel_size)
        self._batch_size, self._drop_last, self._order = batch_size, drop_last, order
        self._num_rows, self._epoch = num_rows, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield a list of row numbers for each micro-batch."""
        rank, world = self._place
        order = self._order(self._epoch)
        for batch in _C.rank_micro_batches(order, self._batch_size, rank, world, self._drop_last):
            yield [int(row) for row in batch]

    def __len__(self) -> int:
        """Return the micro-batch count per epoch."""
        count = _C.micro_batch_count(self._num_rows, self._batch_size, self._place[1], self._drop_last)
        return int(count)


class AheadLoader(DataLoader[Any]):
    """A DataLoader that reads the next batch in advance, like accelerate's DataLoaderShard.

    iteration: the epoch number of the next pass; each pass increments it at its end.
    """

    batch_sampler: RankBatches
    iteration = 0
    tells_epoch = False  # True if accelerate calls the data set's `set_epoch`

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.iteration = epoch
        self.batch_sampler.set_epoch(epoch)
        if self.tells_epoch:
            self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]

    def __iter__(self) -> Any:
        """Yield batches. The random numbers of a pass are drawn when its first batch is requested."""
        self.set_epoch(self.iteration)
        batches = super().__iter__()
        nothing = object()
        ahead = next(batches, nothing)
        while ahead is not nothing:
            batch, ahead = ahead, next(batches, nothing)
            yield batch
        self.iteration += 1


class StackRows:
    """A collator that stacks items to tensors [rows, longest].

    It pads labels with -100, the attention mask with 0, and all other columns with `pad_id`.
    """

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return a batch of `items`, all of which have the same keys."""
        batch = {}
        for name in items[0]:
            rows = [torch.as_tensor(item[name]) for item in items]
            filling = _PADDING.get(name, self._pad_id)
            batch[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)
        return batch


def train_loader(
    args: TrainingArguments, dataset: object, collator: Collator, tokenizer: object
) -> AheadLoader:
    """Return a DataLoader of this rank's training micro-batches.

    For an order by length, this call reads all items.
    """
    rows = as_read(args, dataset)
    batches = RankBatches(
        args, args.train_batch_size, args.dataloader_drop_last, len(rows),
        training_order(args, rows, tokenizer),
    )  # fmt: skip
    shuffles = args.train_sampling_strategy == "random"
    return _loader(args, rows, batches, collator, training=True, sets_epoch=shuffles)


def eval_loader(
    args: TrainingArguments, dataset: object, collator: Collator, tokenizer: object
) -> AheadLoader:
    """Return a DataLoader of this rank's evaluation batches, in the data set's order or by length."""
    rows = as_read(args, dataset)
    batches = RankBatches(
        args, args.eval_batch_size, args.dataloader_drop_last, len(rows),
        evaluation_order(args, rows, tokenizer),
    )  # fmt: skip
    return _loader(args, rows, batches, collator, training=False, sets_epoch=False)


def _loader(
    args: TrainingArguments,
    dataset: SizedDataset,
    batches: RankBatches,
    collator: Collator,
    *,
    training: bool,
    sets_epoch: bool,
) -> AheadLoader:
    loader = AheadLoader(
        cast("Dataset[Any]", dataset),  # torch accepts any object with a length and rows by number
        batch_sampler=batches,
        collate_fn=collator,
        pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
        **worker_options(args, training),
    )
    loader.tells_epoch = hasattr(dataset, "set_epoch") and not (sets_epoch and args.world_size > 1)
    return loader
