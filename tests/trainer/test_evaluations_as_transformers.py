"""evaluate and predict, called or overridden by scripts, behave as in transformers or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import fastsft
from trainer_pairs import FLAGS, WIDTH, Plain, check_equal, item, model, ours, theirs

SETS = {"a": 3, "b": 4}


def recording(base: Any, output: Path) -> tuple[Any, list[Any]]:
    """Return a Trainer whose class overrides evaluate, and the list of the arguments of its calls."""
    calls: list[Any] = []

    class Recording(base):
        """Notes the arguments of each call of evaluate."""

        def evaluate(
            self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
        ) -> Any:
            given = eval_dataset if isinstance(eval_dataset, str) else type(eval_dataset).__name__
            calls.append((given, ignore_keys, metric_key_prefix))
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    flags = {**FLAGS, "eval_strategy": "steps", "eval_steps": 4, "num_train_epochs": 1}
    if base is fastsft.Trainer:
        args: Any = fastsft.TrainingArguments(str(output), plot_loss=False, model_max_length=WIDTH, **flags)
    else:
        args = transformers.TrainingArguments(str(output), **flags)
    sets = {name: Plain(size) for name, size in SETS.items()}
    return Recording(model(), args, transformers.default_data_collator, Plain(), sets), calls


CALLS: dict[str, Callable[[Any], Any]] = {
    "the trainer's sets": lambda trainer: trainer.evaluate(),
    "other sets": lambda trainer: trainer.evaluate({"c": Plain(3)}),
    "one by its name": lambda trainer: trainer.evaluate("a"),
    "one by its name, with a prefix": lambda trainer: trainer.evaluate("b", metric_key_prefix="last"),
    "in training": lambda trainer: trainer.train(ignore_keys_for_eval=["past_key_values"]) and {},
}


@pytest.mark.parametrize("name", CALLS)
def test_each_set_is_a_call_of_evaluate(tmp_path: Path, name: str) -> None:
    found = []
    for base in (transformers.Trainer, fastsft.Trainer):
        trainer, calls = recording(base, tmp_path / base.__module__)
        metrics = CALLS[name](trainer)
        logged = [sorted(entry) for entry in trainer.state.log_history if "loss" not in entry]
        losses = {key: round(value, 5) for key, value in metrics.items() if key.endswith("loss")}
        found.append((calls, sorted(metrics), losses, [keys for keys in logged if "train_loss" not in keys]))
    assert found[0] == found[1]


def test_a_set_that_is_put_under_a_name_counts(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(), {"a": Plain(3)})
    trainer.eval_dataset["a"] = Plain(5)
    expected = theirs(tmp_path, Plain(), Plain(5)).evaluate()["eval_loss"]
    check_equal([trainer.evaluate()["eval_a_loss"]], [expected])


def unlabelled(row: int) -> dict[str, torch.Tensor]:
    whole = item(row, WIDTH)  # as long as all: predictions have no padding here
    return {"input_ids": whole["input_ids"], "attention_mask": whole["attention_mask"]}


def stacked(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A script's own collator."""
    return {name: torch.stack([each[name] for each in items]) for name in items[0]}


def best(logits: torch.Tensor, labels: Any) -> torch.Tensor:
    assert labels is None
    return logits.argmax(-1)


@pytest.mark.parametrize("collator", [None, stacked])
@pytest.mark.parametrize("hook", [None, best])
def test_rows_without_labels_have_predictions_and_no_loss(tmp_path: Path, hook: Any, collator: Any) -> None:
    found: list[Any] = []
    for make in (theirs, ours):
        trainer = make(tmp_path, Plain(), [unlabelled(row) for row in range(5)], collator=collator)
        trainer.compute_metrics = lambda predicted: {"called": 1.0}
        trainer.preprocess_logits_for_metrics = hook
        predicted = trainer.predict([unlabelled(row) for row in range(4)])
        assert predicted.label_ids is None
        found.append((predicted.predictions, sorted(predicted.metrics), sorted(trainer.evaluate())))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4, atol=1e-4)
    assert found[0][1:] == found[1][1:] and "eval_loss" not in found[1][2]


def test_rows_without_labels_cannot_be_trained_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0: expected input_ids and labels, .*-100 where nothing is"):
        ours(tmp_path, [unlabelled(row) for row in range(4)])


def with_outputs(output: Path, make: Any, **config: Any) -> Any:
    module = model()
    for name, value in config.items():
        setattr(module.config, name, value)
    trainer = make(output, Plain(), Plain(4), module=module, eval_strategy="epoch")
    trainer.compute_metrics = lambda predicted: {"mean": float(np.mean(predicted.predictions))}
    return trainer


def test_outputs_next_to_the_logits_are_refused(tmp_path: Path) -> None:
    found = []
    for make in (theirs, ours):
        trainer = with_outputs(tmp_path, make, output_hidden_states=True)
        found.append(trainer.evaluate(ignore_keys=["hidden_states"])["eval_loss"])
    check_equal(found[1:], found[:1])
    for call in (trainer.train, trainer.evaluate, lambda: trainer.predict(Plain(4))):
        with pytest.raises(ValueError, match=r"output_hidden_states is True.*ignore_keys=\["):
            call()
    with pytest.raises(ValueError, match="expected ignore_keys without logits"):
        trainer.predict(Plain(4), ignore_keys=["logits", "hidden_states"])
    trainer.compute_metrics = None  # then nobody sees outputs
    assert trainer.evaluate()["eval_loss"] == found[1]
