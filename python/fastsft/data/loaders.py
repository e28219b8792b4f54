"""Make torch data loaders over the rows of a Trainer, for scripts that iterate over the batches themselves.

The loaders yield the batches of transformers' Trainer in its order and draw the same random numbers. A script
that iterates before training thus changes the training as it would with transformers. The engine does not use
these loaders.
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

    num_rows: number of rows of the data set. order: function that returns the row order of an epoch; called
    before the first batch, since it may draw from the global random generator.
    """

    def __init__(
        self, args: TrainingArguments, batch_size: int, drop_last: bool, num_rows: int, order: Order
    ) -> None:
        self._place = (args.process_index, args.world_size)
        self._batch_size, self._drop_last, self._order = batch_size, drop_last, order
        self._num_rows, self._epoch = num_rows, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next pass's epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield a list of rows for each micro-batch."""
        rank, world = self._place
        order = self._order(self._epoch)
        for batch in _C.rank_micro_batches(order, self._batch_size, rank, world, self._drop_last):
            yield [int(row) for row in batch]

    def __len__(self) -> int:
        """Return the number of micro-batches in an epoch."""
        count = _C.micro_batch_count(self._num_rows, self._batch_size, self._place[1], self._drop_last)
        return int(count)


class AheadLoader(DataLoader[Any]):
    """A DataLoader that reads one batch ahead, as accelerate's DataLoaderShard does.

    `iteration`: epoch number of the next pass; raised by one at the end of each pass.
    """

    batch_sampler: RankBatches
    iteration = 0
    tells_epoch = False  # True if accelerate calls the data set's `set_epoch`

    def set_epoch(self, epoch: int) -> None:
        """Set the next pass's epoch."""
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

    Labels are padded with -100, the attention mask with 0, and other columns with `pad_id`.
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

    For an order by length, all items are read here.
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
    """Return a DataLoader of this rank's evaluation batches, in the order of the data set or by length."""
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
        cast("Dataset[Any]", dataset),  # torch accepts any object with a length and rows
        batch_sampler=batches,
        collate_fn=collator,
        pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
        **worker_options(args, training),
    )
    loader.tells_epoch = hasattr(dataset, "set_epoch") and not (sets_epoch and args.world_size > 1)
    return loader
