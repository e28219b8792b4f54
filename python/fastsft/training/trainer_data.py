"""The data of a Trainer as scripts iterate over it; a part of Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.dataset.collators import CollatedRows, collator_name, only_stacks
from fastsft.dataset.item_rules import ItemRules
from fastsft.dataset.token_rows import TokenRows


class TrainerData:
    """Data loaders as transformers' Trainer has them; the engine itself reads the rows without padding."""

    args: TrainingArguments
    model: Any
    train_dataset: Any
    eval_dataset: Any
    train_rows: TokenRows
    processing_class: Any
    is_in_train: bool
    _data_collator: Any = None

    @property
    def data_collator(self) -> Any:
        """The collator that was given. Setting another one is refused unless it only stacks and pads.

        ValueError: the rows have been read with the old one.
        """
        return self._data_collator

    @data_collator.setter
    def data_collator(self, collator: Any) -> None:
        if collator is not self._data_collator and not only_stacks(collator):
            raise ValueError(
                f"Trainer.data_collator: {collator_name(collator)} comes too late: the rows are read when "
                "the Trainer is made; give it to Trainer(data_collator=...)"
            )
        self._data_collator = collator

    def _read_rows(self, dataset: Any) -> TokenRows:
        """The rows of `dataset`, through the collator where it does more than stack and pad."""
        rules = ItemRules.of(self.args, self._data_collator, self.processing_class, self.model)
        if only_stacks(self._data_collator):
            return TokenRows.of(dataset, self.args.model_max_length, rules=rules)
        keeps_all = not self.args.remove_unused_columns
        return TokenRows.of(
            dataset,
            self.args.model_max_length,
            lambda items: CollatedRows(items, self._data_collator, all_columns=keeps_all),
            rules,
        )

    def get_train_dataloader(self) -> Any:
        """A torch DataLoader of this rank's micro-batches in the order of training, an epoch a pass.

        Batches are made by data_collator, else stacked and padded, and stay on the CPU. ValueError without a
        train_dataset.
        """
        from fastsft.dataset.loaders import train_loader

        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset, got None")
        return train_loader(self.args, self.train_dataset, self.train_rows, self._collator())

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
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

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The same of `test_dataset`."""
        from fastsft.dataset.loaders import eval_loader

        return eval_loader(self.args, test_dataset, self._collator())

    def _collator(self) -> Any:
        from fastsft.dataset.loaders import StackRows

        pad_id = getattr(self.processing_class, "pad_token_id", None)
        return self.data_collator or StackRows(0 if pad_id is None else pad_id)
