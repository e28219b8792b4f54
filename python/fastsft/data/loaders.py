"""torch data loaders over the rows of a Trainer, for scripts that iterate over them.

They give the batches that transformers' Trainer would train on, in its order. The engine does not read
them: it packs the same rows without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Sampler

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.epoch_order import epoch_order
from fastsft.data.token_rows import TokenRows

Collator = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
_PADDING = {"labels": -100, "attention_mask": 0}


class RankBatches(Sampler[list[int]]):
    """Rows of this rank's micro-batches, one epoch a pass: each pass is the next epoch."""

    def __init__(
        self,
        args: TrainingArguments,
        batch_size: int,
        drop_last: bool,
        order: Callable[[int], npt.NDArray[np.int64]],
    ) -> None:
        self._place = (args.process_index, args.world_size)
        self._batch_size, self._drop_last, self._order = batch_size, drop_last, order
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass is `epoch`."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Lists of rows."""
        rank, world = self._place
        order = self._order(self._epoch)
        self._epoch += 1
        for batch in _C.rank_micro_batches(order, self._batch_size, rank, world, self._drop_last):
            yield [int(row) for row in batch]

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        rows, world = len(self._order(0)), self._place[1]
        return int(_C.micro_batch_count(rows, self._batch_size, world, self._drop_last))


class StackRows:
    """Collates items: tensors [rows, longest]; what is missing is `pad_id`, label -100, mask 0."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """A batch of `items`, which have the same keys."""
        batch = {}
        for name in items[0]:
            rows = [torch.as_tensor(item[name]) for item in items]
            filling = _PADDING.get(name, self._pad_id)
            batch[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filling)
        return batch


def train_loader(args: TrainingArguments, dataset: Any, rows: TokenRows, collator: Collator) -> Any:
    """A DataLoader of this rank's micro-batches of `dataset`, whose rows are `rows`."""
    batches = RankBatches(
        args,
        args.train_batch_size,
        args.dataloader_drop_last,
        lambda epoch: epoch_order(args, rows, epoch),
    )
    return _loader(args, dataset, batches, collator)


def eval_loader(args: TrainingArguments, dataset: Any, collator: Collator) -> Any:
    """A DataLoader of this rank's batches of evaluation, in the order of the data set."""
    order = np.arange(len(dataset), dtype=np.int64)
    batches = RankBatches(args, args.eval_batch_size, args.dataloader_drop_last, lambda epoch: order)
    return _loader(args, dataset, batches, collator)


def _loader(args: TrainingArguments, dataset: Any, batches: RankBatches, collator: Collator) -> Any:
    return DataLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
    )
