"""Changes of arguments after a Trainer was made have an effect exactly if they do in transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from fastsft.runtime import messages as notices
from trainer_pairs import Plain, check_equal, curve, losses, ours, theirs, unrounded

FLAGS: dict[str, Any] = {"weight_decay": 0.1, "lr_scheduler_type": "linear"}
CHANGES: dict[str, dict[str, Any]] = {
    "weight_decay": {"weight_decay": 5.0},
    "adam_beta1": {"adam_beta1": 0.1},
    "adam_beta2": {"adam_beta2": 0.5},
    "adam_epsilon": {"adam_epsilon": 0.1},
    "learning_rate": {"learning_rate": 1e-4},
    "label_smoothing_factor": {"label_smoothing_factor": 0.5},
    "neftune_noise_alpha": {"neftune_noise_alpha": 50.0},
    "max_grad_norm": {"max_grad_norm": 1e-3},
}
COUNTS_BEFORE = ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "learning_rate", "max_grad_norm")


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)
    monkeypatch.setattr(notices, "_said", set())


def changing(event: str, change: dict[str, Any]) -> Any:
    def listen(self: Any, args: Any, *_: Any, **__: Any) -> None:
        for name, value in change.items():
            setattr(args, name, value)

    return type("Changing", (transformers.TrainerCallback,), {event: listen})()


def set_in(trainer: Any, change: dict[str, Any]) -> None:
    for name, value in change.items():
        setattr(trainer.args, name, value)


def both(folder: Path, run: Callable[[Any], list[float]], **flags: Any) -> tuple[list[float], list[float]]:
    expected, found = (
        run(make(folder / make.__name__, Plain(), Plain(5), **{**FLAGS, **flags})) for make in (theirs, ours)
    )
    check_equal(found, expected, 2e-5)
    return expected, found


@pytest.mark.variants(
    "[learning_rate-on_init",
    "[label_smoothing_factor-on_init",
    "[max_grad_norm-on_init",
    "[adam_beta2-on_step",
    "[adam_beta1-on_train",
)
@pytest.mark.parametrize("event", ["on_init_end", "on_train_begin", "on_step_end"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_callback_changes_what_it_changes_in_the_original(tmp_path: Path, name: str, event: str) -> None:
    def run(trainer: Any) -> list[float]:
        callback = changing(event, CHANGES[name])
        if event == "on_init_end":
            callback.on_init_end(trainer.args)
        else:
            trainer.add_callback(callback)
        return [*losses(trainer), *curve(trainer, "learning_rate"), trainer.evaluate()["eval_loss"]]

    changed, _ = both(tmp_path / "changed", run)
    plain = theirs(tmp_path / "plain", Plain(), Plain(5), **FLAGS)
    without = [*losses(plain), *curve(plain, "learning_rate"), plain.evaluate()["eval_loss"]]
    counts = name == "max_grad_norm" or (event == "on_init_end" and name in COUNTS_BEFORE)
    assert (changed != without) == counts


@pytest.mark.variants("max_grad_norm", "adam_beta1", "warmup_steps")
@pytest.mark.parametrize("name", [*CHANGES, "warmup_steps"])
def test_a_second_run_keeps_the_optimizer(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    change = CHANGES.get(name, {"warmup_steps": 3})

    def run(trainer: Any) -> list[float]:
        first = losses(trainer)
        set_in(trainer, change)
        return [*first, *losses(trainer), *curve(trainer, "learning_rate")]

    both(tmp_path, run)
    lines = [record.message for record in caplog.records if f"args.{name} was" in record.message]
    assert len(lines) == (name not in ("max_grad_norm", "warmup_steps"))


@pytest.mark.parametrize("flags", [{"label_smoothing_factor": 0.2}, {"label_smoothing_factor": 0.0}])
def test_evaluations_keep_the_smoothing(tmp_path: Path, flags: dict[str, Any]) -> None:
    def run(trainer: Any) -> list[float]:
        before = trainer.evaluate()["eval_loss"]
        trainer.args.label_smoothing_factor = 0.5
        return [before, trainer.evaluate()["eval_loss"], *losses(trainer), trainer.evaluate()["eval_loss"]]

    expected, _ = both(tmp_path, run, **flags)
    assert expected[0] == expected[1]


def test_a_checkpoint_names_what_the_run_was_done_with(tmp_path: Path) -> None:
    """A run that resumes from the checkpoint with the original arguments causes no warning about changes."""
    saved = {"save_strategy": "steps", "save_steps": 4}

    def run(trainer: Any) -> list[float]:
        trainer.add_callback(changing("on_train_begin", CHANGES["weight_decay"]))
        losses(trainer)
        again = (theirs if isinstance(trainer, transformers.Trainer) else ours)(
            Path(trainer.args.output_dir), Plain(), Plain(5), **FLAGS, **saved
        )
        checkpoint = str(Path(trainer.args.output_dir) / "checkpoint-4")
        return losses(again, resume_from_checkpoint=checkpoint)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        both(tmp_path, run, **saved)
    assert not [each for each in said if "weight_decay" in str(each.message)]


def test_a_second_call_with_a_plateau_is_refused(tmp_path: Path) -> None:
    flags = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
    trainer = ours(tmp_path, Plain(), Plain(5), **flags)
    trainer.train()
    with pytest.raises(ValueError, match="expected one call with lr_scheduler_type='reduce_lr_on_plateau'"):
        trainer.train()
