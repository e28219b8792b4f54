"""A script that looks into the trainer's loaders before train(): it then trains as with transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainer_pairs import Drawing, Plain, check_equal, losses, ours, theirs, unrounded


def first_batch(trainer: Any) -> Any:
    return next(iter(trainer.get_train_dataloader()))["input_ids"]


def an_epoch_and_a_batch(trainer: Any) -> Any:
    loader = trainer.get_train_dataloader()
    whole = [batch["input_ids"] for batch in loader]
    return torch.stack([*whole, next(iter(loader))["input_ids"], next(iter(loader))["input_ids"]])


def evaluation_batch(trainer: Any) -> Any:
    return next(iter(trainer.get_eval_dataloader()))["input_ids"]


LOOKS: list[Callable[[Any], Any]] = [first_batch, an_epoch_and_a_batch, evaluation_batch]


@pytest.mark.covering
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    ("source", "grouped"), [("own", False), ("torch", False), (None, True), ("torch", True)]
)
def test_a_look_changes_what_transformers_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, grouped: bool, look: Any
) -> None:
    """The batches that it sees, every read of an item, and the losses after it."""
    unrounded(monkeypatch)
    curves, seen, reads = [], [], []
    for make in (theirs, ours):
        torch.manual_seed(3)  # the seed of torch is that of the order, unless data_seed is given
        train = Plain() if source is None else Drawing(source)
        other = Drawing("torch", 5)
        trainer = make(
            tmp_path / make.__name__, train, other, collator=transformers.default_data_collator,
            num_train_epochs=1, group_by_length=grouped,
        )  # fmt: skip
        torch.manual_seed(4)
        seen.append(look(trainer))
        curves.append(losses(trainer))
        reads.append((train.reads, other.reads))
    assert torch.equal(*seen)
    assert reads[0] == reads[1]
    check_equal(curves[1], curves[0])
