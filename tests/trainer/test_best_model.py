"""Best model, early stopping and events, beside transformers' own Trainer on the same tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import fastsft
from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.checkpoint.content import CheckpointContent
from fastsft.trainer import Trainer
from tiny_models import weights_of, write_model

EVENTS = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
FIELDS = ["epoch", "global_step", "max_steps", "num_train_epochs", "logging_steps", "eval_steps",
          "save_steps", "best_global_step"]  # fmt: skip


class Recorder(transformers.TrainerCallback):
    """Records every event, with the state and the switches at that moment."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def _record(self, event: str, state: Any, control: Any) -> None:
        fields = [getattr(state, name) for name in FIELDS]
        history = [sorted(entry) for entry in state.log_history]
        switches = {name: bool(value) for name, value in vars(control).items() if name.startswith("should_")}
        self.seen.append((event, fields, history, switches))


for _name in EVENTS:
    setattr(
        Recorder,
        _name,
        lambda self, args, state, control, _event=_name, **_: self._record(_event, state, control),
    )


def items(rows: int, seed: int) -> list[dict[str, Any]]:
    """Make rows of 5 to 11 tokens, padded to 12; all tokens from the third on are learned."""
    generator, made = np.random.default_rng(seed), []
    for _ in range(rows):
        length, at = int(generator.integers(5, 12)), np.arange(12)
        ids = np.where(at < length, generator.integers(1, 70, 12), 0)
        labels = np.where((at >= 2) & (at < length), ids, -100)
        made.append(
            {
                "input_ids": ids.tolist(),
                "labels": labels.tolist(),
                "attention_mask": (at < length).astype(int).tolist(),
            }
        )
    return made


def flags(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "use_cpu": True, "per_device_train_batch_size": 2, "seed": 7,
        "per_device_eval_batch_size": 3, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
        "learning_rate": 0.02, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 1,
        "save_strategy": "steps", "save_steps": 1, "report_to": "none", "disable_tqdm": True,
        "load_best_model_at_end": True, **more,
    }  # fmt: skip


def run_both(tmp_path: Path, evaluation: Any, callbacks: Any, **more: Any) -> tuple[Any, Any]:
    """Train with transformers and with fastsft, and return both Trainers.

    callbacks: makes the callbacks of one Trainer.
    """
    directory = write_model(tmp_path / "model", "untied")
    theirs = transformers.Trainer(
        model=transformers.LlamaForCausalLM.from_pretrained(directory),
        args=transformers.TrainingArguments(**flags(tmp_path / "theirs", **more)),
        train_dataset=items(9, 0),
        eval_dataset=evaluation,
        callbacks=callbacks(),
    )
    theirs.train()
    ours = Trainer(
        str(directory),
        args=TrainingArguments(**flags(tmp_path / "ours", **more), model_max_length=12, plot_loss=False),
        train_dataset=items(9, 0),
        eval_dataset=evaluation,
        callbacks=callbacks(),
    )
    ours.train()
    return theirs, ours


def recorded(trainer: Any) -> list[tuple[Any, ...]]:
    handler = trainer.callback_handler
    return next(item for item in handler.callbacks if isinstance(item, Recorder)).seen


def check_best(theirs: Any, ours: Any, key: str = "eval_loss") -> None:
    """Check that both Trainers name the same best step, and that fastsft's has its weights at the end."""
    losses = [entry[key] for entry in ours.state.log_history if key in entry]
    assert losses == pytest.approx([e[key] for e in theirs.state.log_history if key in e], rel=1e-3)
    assert ours.state.best_metric == min(losses) == pytest.approx(theirs.state.best_metric, rel=1e-3)
    assert ours.state.best_global_step == theirs.state.best_global_step < ours.state.global_step
    best = Path(ours.state.best_model_checkpoint)
    assert best.name == Path(theirs.state.best_model_checkpoint).name
    kept, weights = weights_of(best), ours.model.engine.named_parameters()
    assert all(torch.equal(kept[name], value) for name, value in weights.items())


def test_events_are_those_of_transformers(tmp_path: Path) -> None:
    theirs, ours = run_both(tmp_path, items(7, 1), lambda: [Recorder()], save_total_limit=1)
    assert recorded(ours) == recorded(theirs)
    assert {event for event, *_ in recorded(ours)} >= {"on_substep_end", "on_optimizer_step", "on_save"}
    check_best(theirs, ours)
    left = [
        sorted(path.name for path in (tmp_path / kind).glob("checkpoint-*")) for kind in ("theirs", "ours")
    ]
    assert left[0] == left[1] == [Path(ours.state.best_model_checkpoint).name]


@pytest.mark.parametrize("kind", [transformers.EarlyStoppingCallback, fastsft.EarlyStoppingCallback])
def test_early_stopping_stops_where_transformers_stops(tmp_path: Path, kind: Any) -> None:
    sets = {"a": items(7, 1), "b": items(4, 2)}
    kinds = iter([transformers.EarlyStoppingCallback, kind])
    theirs, ours = run_both(
        tmp_path, sets, lambda: [Recorder(), next(kinds)(2, 0.001)], metric_for_best_model="a_loss"
    )
    assert ours.state.global_step == theirs.state.global_step < ours.state.max_steps
    assert recorded(ours) == recorded(theirs)
    check_best(theirs, ours, "eval_a_loss")
    name = "EarlyStoppingCallback"
    assert ours.state.stateful_callbacks[name] == theirs.state.stateful_callbacks[name]


def test_the_best_of_models_alone(tmp_path: Path) -> None:
    """With --save_only_model, the best weights are loaded from the model files."""
    directory = write_model(tmp_path / "model", "untied", dtype="bfloat16")
    more = {"save_strategy": "best", "save_only_model": True, "save_steps": 500, "save_total_limit": 2}
    ours = Trainer(
        str(directory),
        args=TrainingArguments(**flags(tmp_path / "ours", **more), model_max_length=12, plot_loss=False),
        train_dataset=items(9, 0),
        eval_dataset=items(7, 1),
    )
    ours.train()
    best = Path(ours.state.best_model_checkpoint)
    assert best.name == f"checkpoint-{ours.state.best_global_step}" != f"checkpoint-{ours.state.max_steps}"
    kept, weights = weights_of(best), ours.model.engine.named_parameters()
    assert all(torch.equal(kept[name].float(), value) for name, value in weights.items())


@pytest.mark.parametrize("first_lost", [1, 2])
def test_a_best_checkpoint_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, first_lost: int
) -> None:
    """With --on_save_error continue, trainer_state.json names an existing checkpoint, or none."""
    write = CheckpointContent.write_run_files

    def fail_from(self: CheckpointContent, directory: str) -> Any:
        if self.step >= first_lost:
            raise RuntimeError("the disk is gone")
        return write(self, directory)

    monkeypatch.setattr(CheckpointContent, "write_run_files", fail_from)
    options = {**flags(tmp_path / "ours"), "on_save_error": "continue", "plot_loss": False}
    ours = Trainer(
        str(write_model(tmp_path / "model", "untied")),
        args=TrainingArguments(**options, model_max_length=12),
        train_dataset=items(9, 0),
        eval_dataset=items(7, 1),
    )
    ours.train()
    ours.save_state()
    text = capsys.readouterr().out
    named = TrainerState.load_from_json(tmp_path / "ours" / "trainer_state.json").best_model_checkpoint
    assert ours.state.best_global_step > 1
    if first_lost == 1:
        assert named is None and "there is no checkpoint of the best step" in text
        return
    assert named == str(tmp_path / "ours" / "checkpoint-1") and Path(named).is_dir()
    assert (
        f"checkpoint-1, the best that could be saved: step {ours.state.best_global_step} was better" in text
    )
    kept, weights = weights_of(Path(named)), ours.model.engine.named_parameters()
    assert all(torch.equal(kept[name], value) for name, value in weights.items())


def test_the_best_checkpoint_of_transformers(tmp_path: Path, capsys: Any) -> None:
    """The best weights are loaded even if the best checkpoint is that of the resumed transformers' run."""
    directory = write_model(tmp_path / "model", "untied")
    more = {"metric_for_best_model": "loss", "greater_is_better": True, "max_steps": 4}
    transformers.Trainer(
        model=transformers.LlamaForCausalLM.from_pretrained(directory),
        args=transformers.TrainingArguments(**flags(tmp_path / "theirs", **more)),
        train_dataset=items(9, 0),
        eval_dataset=items(7, 1),
    ).train()
    options = {**flags(tmp_path / "ours", **more), "max_steps": 5, "plot_loss": False}
    ours = Trainer(
        str(directory),
        args=TrainingArguments(**options, model_max_length=12),
        train_dataset=items(9, 0),
        eval_dataset=items(7, 1),
    )
    ours.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-4"))
    best = tmp_path / "theirs" / "checkpoint-1"
    assert f"loaded the best weights: {best}, eval_loss " in capsys.readouterr().out
    kept, weights = weights_of(best), ours.model.engine.named_parameters()
    assert all(torch.equal(kept[name], value) for name, value in weights.items())
