"""Changes of a script that look like the original by name: called, or refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import fastsft
from altered_runs import load, ours
from fastsft.dataset.collators import only_stacks


def default_data_collator(rows: list[Any]) -> Any:
    """Of a script, under transformers' name."""
    return transformers.default_data_collator(rows)


class DataCollatorForSeq2Seq:
    """Of a script, under transformers' name."""

    def __call__(self, rows: list[Any]) -> Any:
        return transformers.default_data_collator(rows)


def test_collators_are_known_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_stacks(transformers.default_data_collator) and only_stacks(transformers.DefaultDataCollator())
    assert not only_stacks(default_data_collator) and not only_stacks(DataCollatorForSeq2Seq())
    monkeypatch.setattr(transformers.DataCollatorWithPadding, "__call__", lambda self, rows: rows)
    assert not only_stacks(transformers.DataCollatorWithPadding(tokenizer=None))


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
