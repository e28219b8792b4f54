"""Attributes of a Trainer that a script sets after it was made: as in transformers, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainer_pairs import Plain, check_equal, curve, item, losses, model, ours, theirs, unrounded


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def half_labels(rows: list[Any]) -> Any:
    batch = transformers.default_data_collator(rows)
    batch["labels"][:, :8] = -100
    return batch


def other_rows(trainer: Any) -> None:
    trainer.train_dataset = [item(row) for row in range(20, 26)]


def collator(trainer: Any) -> None:
    trainer.data_collator = half_labels


def rates(trainer: Any) -> None:
    trainer.args.learning_rate, trainer.args.lr_scheduler_type = 0.005, "linear"
    trainer.args.warmup_steps, trainer.args.max_grad_norm = 2, 0.3


def batches(trainer: Any) -> None:
    trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps = 3, 2
    trainer.args.max_steps, trainer.args.own_name = 5, "x"


def same_model(trainer: Any) -> None:
    given = trainer.accelerator.unwrap_model(trainer.model)
    trainer.model = given
    trainer.model_wrapped = given


def weights(trainer: Any) -> None:
    with torch.no_grad():
        trainer.accelerator.unwrap_model(trainer.model).lm_head.weight.mul_(1.5)


def metrics(trainer: Any) -> None:
    trainer.eval_dataset = Plain(5)
    trainer.compute_metrics = lambda found: {"rows": float(len(found.label_ids))}


@pytest.mark.parametrize("change", [other_rows, collator, rates, batches, same_model, weights, metrics])
def test_a_change_counts_as_in_transformers(tmp_path: Path, change: Callable[[Any], None]) -> None:
    found = []
    for make in (theirs, ours):
        trainer = make(tmp_path / make.__name__, Plain())
        change(trainer)
        trainer.train()
        if change is metrics:
            trainer.evaluate()
        found.append([value for name in ("loss", "learning_rate", "eval_loss", "eval_rows")
                      for value in curve(trainer, name)])  # fmt: skip
    check_equal(found[1], found[0])


@pytest.mark.parametrize("name", ["model", "model_wrapped"])
def test_another_model_is_refused(tmp_path: Path, name: str) -> None:
    trainer = ours(tmp_path, Plain())
    before = trainer.model
    with pytest.raises(ValueError, match=rf"^Trainer\.{name}: .*LlamaForCausalLM.*Trainer\(model=\.\.\.\)"):
        setattr(trainer, name, model(seed=3))
    assert trainer.model is before
    assert len(losses(trainer)) == 8
