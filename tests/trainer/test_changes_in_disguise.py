"""A script's functions and classes with a library's names are called or refused, not mistaken for it."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import fastsft
from altered_runs import load, ours
from fastsft.data.collators import only_stacks
from fastsft.data.item_rules import ItemRules
from fastsft.trainer.compat.guard import tell_callbacks


def default_data_collator(rows: list[Any]) -> Any:
    """Collate rows by a script's function, which has the name of transformers' own."""
    return transformers.default_data_collator(rows)


class DataCollatorForSeq2Seq:
    """A script's collator, which has the name of transformers' class."""

    def __call__(self, rows: list[Any]) -> Any:
        return transformers.default_data_collator(rows)


def test_collators_are_known_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_stacks(transformers.default_data_collator) and only_stacks(transformers.DefaultDataCollator())
    assert not only_stacks(default_data_collator) and not only_stacks(DataCollatorForSeq2Seq())
    monkeypatch.setattr(transformers.DataCollatorWithPadding, "__call__", lambda self, rows: rows)
    assert not only_stacks(transformers.DataCollatorWithPadding(tokenizer=None))


def test_default_values_of_a_collator_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.default_data_collator, "__defaults__", ("np",))
    assert not only_stacks(transformers.default_data_collator)


def test_masks_and_padding_are_those_of_the_real_collators(tmp_path: Path) -> None:
    """Nothing is added to the batches of a script's class that has the name of a transformers' collator."""
    args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=2)
    tokenizer = SimpleNamespace(padding_side="left", model_input_names=["input_ids", "attention_mask"])
    real: Any = transformers.DataCollatorForSeq2Seq(tokenizer)
    forged: Any = DataCollatorForSeq2Seq()
    forged.tokenizer = tokenizer
    rules = ItemRules.from_trainer(args, real, tokenizer, None)
    assert rules.adds_mask and rules.pads_left == "DataCollatorForSeq2Seq"
    rules = ItemRules.from_trainer(args, forged, tokenizer, None)
    assert not rules.adds_mask and rules.pads_left is None


def test_callbacks_are_known_by_their_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A script's method is found even if it has a library's name, is set on an object, or wraps a method."""

    class Wraps(transformers.TrainerCallback):
        @functools.wraps(transformers.TrainerCallback.on_optimizer_step)
        def on_optimizer_step(self, *_: Any, **__: Any) -> None: ...

    class Forged(transformers.TrainerCallback):
        def on_optimizer_step(self, *_: Any, **__: Any) -> None: ...

    Forged.__module__ = Forged.on_optimizer_step.__module__ = "transformers.trainer_callback"
    on_object: Any = transformers.TrainerCallback()
    on_object.on_optimizer_step = lambda *_, **__: None
    model = SimpleNamespace(module=object())
    for callback, name in ((Wraps(), "Wraps"), (Forged(), "Forged"), (on_object, "TrainerCallback")):
        tell_callbacks(model, [callback])
        assert f"callbacks ({name}): the model that was given has no gradients" in capsys.readouterr().out
    tell_callbacks(model, [transformers.PrinterCallback(), transformers.EarlyStoppingCallback()])
    assert not capsys.readouterr().out


def test_a_wrapped_step_is_refused(tmp_path: Path) -> None:
    class Mine(fastsft.Trainer):
        @functools.wraps(fastsft.Trainer.log)
        def compute_loss(self, *_: Any, **__: Any) -> Any:
            return 0

    args = fastsft.TrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=r"Mine\.compute_loss would never be called"):
        Mine(load(tmp_path), args=args)


def test_attributes_that_the_step_reads_are_refused(tmp_path: Path) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    trainer.label_smoother = object()
    with pytest.raises(ValueError, match=r"Trainer\.label_smoother was set by the script"):
        trainer.train()


def test_autocast_is_refused(tmp_path: Path) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match=r"torch\.autocast is on for cpu"),
    ):
        trainer.train()
