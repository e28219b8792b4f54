"""Reading of data sets: rows for the engine, and data loaders for scripts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fastsft.data.batch_reads import BatchReader, ReadBatch, check_ids, join_batches
from fastsft.data.collators import Collation, only_stacks
from fastsft.data.epoch_order import as_read, evaluation_order, training_order
from fastsft.data.interfaces import is_table
from fastsft.data.item_rows import PaddedBatch
from fastsft.data.item_rules import ItemRules
from fastsft.data.loaders import Collator, StackRows, eval_loader, train_loader
from fastsft.data.token_rows import TokenRows
from fastsft.ranks.exchange import AllOrNone

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from fastsft import _C
    from fastsft.arguments import TrainingArguments
    from fastsft.trainer.setup import Setup


class RowReader:
    """The reader of all data sets in `setup`.

    It keeps the batch readers of evaluation data whose worker processes are persistent.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._evaluation_readers: dict[tuple[str, bool], BatchReader] = {}

    def rows_of(self, dataset: object, *, needs_labels: bool = True) -> TokenRows:
        """Return the rows of `dataset`. Collective. Rows that are not native may be read only later.

        needs_labels: True if rows without labels are a ValueError.
        """
        setup = self._setup
        collated = not only_stacks(setup.data_collator)
        rules = ItemRules.from_trainer(setup.args, setup.data_collator, setup.tokenizer, setup.model)
        rules.needs_labels = needs_labels
        agreement = AllOrNone("looking at a data set")
        rows = agreement.attempt(
            lambda: TokenRows.from_dataset(
                dataset, setup.args.model_max_length, collated=collated, rules=rules
            )
        )
        known = agreement.settle(None if rows is None else (rows.is_read, rows.is_exact, rows.longest))
        assert rows is not None
        # If a script has changed the data set on one rank, that rank must read item by item. Then all must.
        are_read, are_exact, longest = zip(*filter(None, known), strict=True)
        if not any(are_read) and setup.args.train_sampling_strategy != "group_by_length":
            return rows
        rows = rows.read_by_item()
        return rows if all(are_exact) or not any(are_exact) else rows.with_bound(max(longest))

    def training_reader(self) -> BatchReader:
        """Return a batch reader of train_dataset in training order.

        With --group_by_length, all items are read immediately to get their lengths.
        """
        setup, args = self._setup, self._setup.args
        dataset = as_read(args, setup.train_dataset)
        return BatchReader(
            args, dataset, self.collation(setup.train_dataset, training=True),
            training_order(args, dataset, setup.tokenizer), args.train_batch_size,
            training=True, sets_epoch=args.train_sampling_strategy == "random",
        )  # fmt: skip

    def evaluation_reader(self, dataset: object, name: str | None, *, keeps_padding: bool) -> BatchReader:
        """Return a batch reader of `dataset`, in an evaluation's order.

        name: name under which the reader and its worker processes are kept for later calls if
        dataloader_persistent_workers is set; None always makes a new reader. keeps_padding: True if rows are
        read with their padding.
        """
        setup, args = self._setup, self._setup.args
        key = (name, keeps_padding) if name and args.dataloader_persistent_workers else None
        if key is not None and key in self._evaluation_readers:
            return self._evaluation_readers[key]
        items = as_read(args, dataset)
        reader = BatchReader(
            args, items, self.collation(dataset, training=False, keeps_padding=keeps_padding),
            evaluation_order(args, items, setup.tokenizer), args.eval_batch_size,
            training=False, sets_epoch=False,
        )  # fmt: skip
        if key is not None:
            self._evaluation_readers[key] = reader
        return reader

    def collation(self, dataset: object, *, training: bool, keeps_padding: bool = False) -> Collation:
        """Return the rule that turns items of `dataset` into batches."""
        setup = self._setup
        # transformers drops unused columns of a datasets.Dataset before reading. In other data sets, it drops
        # unused keys of the items after reading.
        all_columns = not setup.args.remove_unused_columns or is_table(dataset)
        return Collation(
            setup.data_collator, all_columns=all_columns, needs_labels=training, keeps_padding=keeps_padding,
            tokenizer=setup.tokenizer,
        )  # fmt: skip

    def train_loader(self) -> DataLoader[Mapping[str, torch.Tensor]]:
        """Return the loader of `Trainer.get_train_dataloader`."""
        setup = self._setup
        args = copy.copy(setup.args)
        args._order_seed = setup.fixed.order_seed(torch.initial_seed())
        loader: DataLoader[Mapping[str, torch.Tensor]] = train_loader(
            args, setup.train_dataset, self._collator(), setup.tokenizer
        )
        return loader

    def eval_loader(self, dataset: object) -> DataLoader[Mapping[str, torch.Tensor]]:
        """Return the loader of `Trainer.get_test_dataloader`."""
        loader: DataLoader[Mapping[str, torch.Tensor]] = eval_loader(
            self._setup.args, dataset, self._collator(), self._setup.tokenizer
        )
        return loader

    def _collator(self) -> Collator:
        pad_id = getattr(self._setup.tokenizer, "pad_token_id", None)
        return self._setup.data_collator or StackRows(0 if pad_id is None else pad_id)


class EvaluationRows(TokenRows):
    """Rows of an evaluation, ordered by micro-batch and then rank. Further rows fill up the last batches.

    num_samples: the data set's row count. own: this rank's batches.
    """

    def __init__(
        self, native: _C.TokenDataset, rows: TokenRows, num_samples: int, own: list[ReadBatch]
    ) -> None:
        super().__init__(native, rows.padded_length, rules=rows.rules)
        self._num_samples, self._own = num_samples, own

    @property
    def num_samples(self) -> int:
        """The data set's row count. Its rows come first; rows after them only fill up batches."""
        return self._num_samples

    def padded_batch(self, step: int) -> PaddedBatch:
        """Return batch `step` of this rank, with the padding with which its rows were read."""
        batch = self._own[step]
        numbers = [batch.number_of(place) for place in range(len(batch.items))]
        return PaddedBatch.of([item.item for item in batch.items], numbers, self.rules)


class StoredRows:
    """Batches of native rows, which are read from the data set once more to get their padding.

    numbers: row numbers of this rank's batches.
    """

    def __init__(self, rows: TokenRows, numbers: list[npt.NDArray[np.int64]], collation: Collation) -> None:
        self._rows, self._numbers, self._collation = rows, numbers, collation

    def padded_batch(self, step: int) -> PaddedBatch:
        """Return batch `step` of this rank. ValueError if its items cannot be collated."""
        numbers = self._numbers[step].tolist()
        items = self._collation([self._rows.source[number] for number in numbers])
        if isinstance(items, ValueError):
            raise items
        return PaddedBatch.of([item.item for item in items], numbers, self._rows.rules)


def read_evaluation(setup: Setup, reader: BatchReader, rows: TokenRows) -> EvaluationRows:
    """Read all rows of an evaluation on every rank. Collective. ValueError names a faulty row."""
    args, model = setup.args, setup.model
    agreement = AllOrNone("reading the data")  # covers the reader's first batch, which is read here
    reads = agreement.attempt(reader.read)
    agreement.settle(None)
    assert reads is not None
    rows.rules = rules = rows.rules and dataclasses.replace(rows.rules, _columns=None)
    batches = gather_batches(reads.rest)
    if not args.dataloader_persistent_workers:
        reads.close()
    native, numbers = join_batches(batches, rules, args.eval_batch_size)
    check_ids(native, numbers, setup.engine.vocab_size)
    model.check_rows(native, numbers, training=False)
    own = [ranks[args.process_index] for ranks in batches]
    return EvaluationRows(native, rows, min(len(reader.dataset), len(native)), own)


def check_context(args: TrainingArguments, rows: TokenRows) -> None:
    """Raise ValueError if ranks share a context and each rank reads the items of its own rows."""
    if args.context_parallel_size > 1 and rows.is_read:
        raise ValueError(
            f"--context_parallel_size {args.context_parallel_size}: expected one of fastsft's own data sets, "
            f"whose rows every rank knows, got {type(rows.source).__name__}; give --data_path or a "
            "SupervisedDataset, or leave it out"
        )


def gather_batches(read: Callable[[], list[ReadBatch]]) -> list[list[ReadBatch]]:
    """Read batches on every rank; return them as [micro-batch][rank]. Collective: all ranks raise or none."""
    agreement = AllOrNone("reading the data")
    mine = agreement.attempt(read)
    ranks = agreement.settle(mine)
    return [list(batches) for batches in zip(*(batches or [] for batches in ranks), strict=True)]
