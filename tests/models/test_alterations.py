"""Models that a script changed: equal to transformers' Trainer, or refused by object and attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from altered_models import EQUAL, REFUSED, Alter
from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from padded_items import WIDTH, random_items
from tiny_models import CONFIGS, write_model

FLAGS: dict[str, Any] = {
    "use_cpu": True, "max_steps": 4, "learning_rate": 0.001, "per_device_train_batch_size": 2, "seed": 3,
    "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "report_to": "none",
}  # fmt: skip


class Recorded(transformers.Trainer):
    """Keeps the loss of each step unrounded."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.losses = [*getattr(self, "losses", ()), float(loss)]
        return loss


def load(folder: Path, kind: str = "untied", **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(write_model(folder / "model", kind), **options)


def ours(model: Any, folder: Path) -> Trainer:
    args = TrainingArguments(str(folder / "ours"), model_max_length=WIDTH, plot_loss=False, **FLAGS)
    return Trainer(model, args=args, train_dataset=random_items())


def their_losses(model: Any, folder: Path) -> list[float]:
    args = transformers.TrainingArguments(str(folder / "theirs"), **FLAGS)
    items = [{name: torch.tensor(value) for name, value in item.items()} for item in random_items()]
    trainer = Recorded(model, args=args, train_dataset=items)
    trainer.train()
    return trainer.losses


def our_losses(trainer: Trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def altered(alter: Alter, model: Any, patch: pytest.MonkeyPatch) -> Any:
    made = alter(model, patch)
    return model if made is None else made


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_compute_something_else_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter, message = REFUSED[case]
    model = altered(alter, load(tmp_path), monkeypatch)
    with pytest.raises(ValueError, match=message):
        ours(model, tmp_path)


@pytest.mark.parametrize("case", EQUAL)
def test_what_computes_the_same_is_trained(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = [load(tmp_path), load(tmp_path)]
    first, second = (altered(EQUAL[case], model, monkeypatch) for model in loaded)
    expected = their_losses(first, tmp_path)
    assert our_losses(ours(second, tmp_path)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_untouched_models_of_every_family(kind: str, attention: str, tmp_path: Path) -> None:
    first, second = (load(tmp_path, kind, attn_implementation=attention) for _ in range(2))
    expected = their_losses(first, tmp_path)
    assert our_losses(ours(second, tmp_path)) == pytest.approx(expected, rel=1e-5)
