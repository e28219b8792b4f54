"""The data of a Trainer as scripts iterate over it; a part of Trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import BatchReader, EpochReads
from fastsft.data.collators import Collation, only_stacks
from fastsft.data.epoch_order import as_read, evaluation_order, training_order
from fastsft.data.interfaces import is_table
from fastsft.data.item_rules import ItemRules
from fastsft.data.loaders import Collator, StackRows, eval_loader, train_loader
from fastsft.data.token_rows import TokenRows
from fastsft.planning.run_plan import RunPlan
from fastsft.ranks.agreement import Agreement
from fastsft.trainer.fixed_arguments import FixedArguments
from fastsft.trainer.token_counter import count_tokens
from fastsft.trainer.trainer_plan import check_not_training

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from fastsft.checkpoint.saved_run import ForeignStates
    from fastsft.model.causal_lm import CausalLM


class TrainerData:
    """Reads data sets for the engine, and gives data loaders as transformers' Trainer has them."""

    args: TrainingArguments
    fixed_arguments: FixedArguments
    model: CausalLM
    train_dataset: object
    eval_dataset: object
    train_rows: TokenRows
    processing_class: object
    is_in_train: bool
    plan: RunPlan
    train_reader: BatchReader | None
    epoch_reads: EpochReads | None
    resumed_states: dict[str, Any] | None
    foreign_states: ForeignStates | None
    _eval_readers: dict[tuple[str, bool], BatchReader]
    _tokens_read: float | None = None
    _train_dataset: object
    _use_rows: Callable[[TokenRows], None]
    _set_evaluation: Callable[[object], None]
    _data_collator: Collator | None = None

    @property
    def data_collator(self) -> Collator | None:
        """The collator that makes the batches. Setting another one plans the rows again.

        ValueError while `train` runs, and for one that pads labels with what would be learned.
        """
        return self._data_collator

    @data_collator.setter
    def data_collator(self, collator: Collator | None) -> None:
        if collator is self._data_collator:
            return
        check_not_training(self, "data_collator")
        changes_rows = not (only_stacks(collator) and only_stacks(self._data_collator))
        self._data_collator = collator
        if changes_rows and self._train_dataset is not None:
            self._use_rows(self._read_rows(self._train_dataset))
        if changes_rows:
            self._set_evaluation(self.eval_dataset)

    def _read_rows(self, dataset: object, *, needs_labels: bool = True) -> TokenRows:
        """The known facts of the rows of `dataset`; none where a collator makes them of its items."""
        collated = not only_stacks(self._data_collator)
        rules = ItemRules.from_trainer(self.args, self._data_collator, self.processing_class, self.model)
        rules.needs_labels = needs_labels
        agreement = Agreement("looking at a data set")
        rows = agreement.attempt(
            lambda: TokenRows.from_dataset(
                dataset, self.args.model_max_length, collated=collated, rules=rules
            )
        )
        known = agreement.settle(None if rows is None else (rows.is_read, rows.is_exact, rows.longest))
        assert rows is not None
        # Rows that one rank reads item by item are read so by all: they were changed there.
        are_read, are_exact, longest = zip(*filter(None, known), strict=True)
        if not any(are_read) and self.args.train_sampling_strategy != "group_by_length":
            return rows
        rows = rows.read_by_item()
        return rows if all(are_exact) or not any(are_exact) else rows.with_bound(max(longest))

    def open_train_reader(self) -> None:
        """Begin to read train_dataset, where its rows are not native; counts its tokens if asked for.

        With --group_by_length every item is read here once, as transformers does.
        """
        self.train_reader, self._tokens_read = None, None
        if not self.train_rows.is_read:
            return
        args = self.args
        dataset = as_read(args, self.train_dataset)
        self.train_reader = BatchReader(
            args, dataset, self._collation(self.train_dataset, training=True),
            training_order(args, dataset, self.processing_class), args.train_batch_size,
            training=True, sets_epoch=args.train_sampling_strategy == "random",
        )  # fmt: skip
        if args.include_tokens_per_second:
            self._tokens_read = count_tokens(args, self.train_reader, self.plan.max_steps)

    def _evaluation_reader(self, dataset: object, name: str | None, keeps_padding: bool) -> BatchReader:
        """Reads `dataset`. name: of a set whose workers stay (dataloader_persistent_workers)."""
        kept = (name, keeps_padding) if name and self.args.dataloader_persistent_workers else None
        if kept is not None and kept in self._eval_readers:
            return self._eval_readers[kept]
        args, taken = self.args, as_read(self.args, dataset)
        reader = BatchReader(
            args, taken, self._collation(dataset, training=False, keeps_padding=keeps_padding),
            evaluation_order(args, taken, self.processing_class), args.eval_batch_size,
            training=False, sets_epoch=False,
        )  # fmt: skip
        if kept is not None:
            self._eval_readers[kept] = reader
        return reader

    def _collation(self, dataset: object, *, training: bool, keeps_padding: bool = False) -> Collation:
        # transformers leaves out columns of a datasets.Dataset before it reads, keys of other items after.
        all_columns = not self.args.remove_unused_columns or is_table(dataset)
        return Collation(
            self._data_collator, all_columns=all_columns, needs_labels=training, keeps_padding=keeps_padding,
            tokenizer=self.processing_class,
        )  # fmt: skip

    def get_train_dataloader(self) -> DataLoader[Mapping[str, torch.Tensor]]:
        """A torch DataLoader of this rank's micro-batches in the order of training, an epoch a pass.

        Batches are made by data_collator, else stacked and padded, and stay on the CPU. It reads one batch
        ahead, and draws random numbers as transformers' loader does. ValueError without a train_dataset.
        """
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset, got None")
        args = copy.copy(self.args)
        args._order_seed = self.fixed_arguments.order_seed(torch.initial_seed())
        loader: DataLoader[Mapping[str, torch.Tensor]] = train_loader(
            args, self.train_dataset, self._collator(), self.processing_class
        )
        return loader

    def get_eval_dataloader(self, eval_dataset: object = None) -> DataLoader[Mapping[str, torch.Tensor]]:
        """The same of evaluation, in the order of the data set: the trainer's, one of its names, or another.

        ValueError without one.
        """
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(chosen, str):
            named = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
            if chosen not in named:
                raise ValueError(
                    f"no evaluation data is called {chosen}; known names: {', '.join(named) or 'none'}"
                )
            chosen = named[chosen]
        if chosen is None or isinstance(chosen, Mapping):
            raise ValueError("get_eval_dataloader: expected an eval_dataset, or the name of one")
        return self.get_test_dataloader(chosen)

    def get_test_dataloader(self, test_dataset: object) -> DataLoader[Mapping[str, torch.Tensor]]:
        """The same of `test_dataset`."""
        loader: DataLoader[Mapping[str, torch.Tensor]] = eval_loader(
            self.args, test_dataset, self._collator(), self.processing_class
        )
        return loader

    def _collator(self) -> Collator:
        pad_id = getattr(self.processing_class, "pad_token_id", None)
        return self.data_collator or StackRows(0 if pad_id is None else pad_id)
