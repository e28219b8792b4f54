"""Changes by callbacks while train() runs take effect as in transformers, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import fastsft
from trainer_pairs import FLAGS, Plain, check_equal, curve, model, ours, theirs, unrounded

Change = Callable[[Any], None]


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def at(event: str, change: Callable[..., None], step: int = 0) -> transformers.TrainerCallback:
    """Calls change(args, control) at `event` of `step`."""

    def listen(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == step:
            change(args, control)

    return type("Changing", (transformers.TrainerCallback,), {event: listen})()


def setting(**values: Any) -> Callable[..., None]:
    def change(args: Any, *_: Any) -> None:
        for name, value in values.items():
            setattr(args, name, value)

    return change


OF_ROWS: list[tuple[str, Any]] = [
    ("gradient_accumulation_steps", 2),
    ("per_device_train_batch_size", 4),
    ("dataloader_drop_last", True),
]


@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_begin", "on_step_end"])
@pytest.mark.parametrize(("name", "value"), OF_ROWS)
def test_what_the_rows_are_planned_with_is_refused(tmp_path: Path, event: str, name: str, value: Any) -> None:
    trainer = ours(tmp_path, Plain())
    trainer.add_callback(at(event, setting(**{name: value}), step=event == "on_step_end"))
    with pytest.raises(ValueError, match=rf"{event} changed args\.{name} from .*before Trainer\(\)"):
        trainer.train()


def test_the_next_run_may_have_other_rows(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain())
    trainer.add_callback(at("on_train_end", setting(gradient_accumulation_steps=2), step=8))
    trainer.train()
    assert trainer.train().global_step == 4


SOURCE: dict[str, dict[str, Any]] = {
    "max_grad_norm": {"max_grad_norm": 0.01},
    "logging_strategy": {"logging_strategy": transformers.IntervalStrategy.EPOCH},
    "eval_strategy": {"eval_strategy": "steps"},
    "per_device_eval_batch_size": {"per_device_eval_batch_size": 1},
}


@pytest.mark.variants("max_grad_norm", "eval_strategy")
@pytest.mark.parametrize("name", SOURCE)
def test_the_arguments_of_the_script_are_those_of_the_event(tmp_path: Path, name: str) -> None:
    """In transformers, `args` of an event is the object that the script has made and may change."""
    flags = {**FLAGS, "eval_strategy": "epoch", "eval_steps": 2}

    def run(kind: Any, changes: dict[str, Any]) -> list[float]:
        args = transformers.TrainingArguments(str(tmp_path / kind.__module__), **flags)
        callback = at("on_step_begin", lambda *_: setting(**changes)(args), step=2)
        trainer = kind(
            model(), args, transformers.default_data_collator, Plain(), Plain(5), callbacks=[callback]
        )
        trainer.train()
        return [*curve(trainer), *curve(trainer, "eval_loss")]

    expected = run(transformers.Trainer, SOURCE[name])
    check_equal(run(fastsft.Trainer, SOURCE[name]), expected)
    assert expected != run(transformers.Trainer, {})


def set_loss_func(trainer: Any) -> None:
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.logits.mean()


def set_smoother(trainer: Any) -> None:
    trainer.label_smoother = transformers.trainer_pt_utils.LabelSmoother(0.5)


def set_kwargs(trainer: Any) -> None:
    trainer.model_accepts_loss_kwargs = False


def set_compute_loss(trainer: Any) -> None:
    trainer.compute_loss = lambda *_, **__: None


def set_label_names(trainer: Any) -> None:
    trainer.label_names = ["answers"]


def set_optimizer_class(trainer: Any) -> None:
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 0.1})


def set_gather(trainer: Any) -> None:
    trainer.gather_function = lambda losses: losses * 2


def set_optimizer(trainer: Any) -> None:
    trainer.optimizer = object()


def set_step_of_class(trainer: Any) -> None:
    type(trainer).training_step = lambda *_: None


ON_THE_TRAINER: dict[str, Change] = {
    "compute_loss_func": set_loss_func,
    "label_smoother": set_smoother,
    "model_accepts_loss_kwargs": set_kwargs,
    "compute_loss": set_compute_loss,
    "label_names": set_label_names,
    "optimizer": set_optimizer,
    "optimizer_cls_and_kwargs": set_optimizer_class,
    "gather_function": set_gather,
    "training_step": set_step_of_class,
}


@pytest.mark.covering
@pytest.mark.parametrize(("event", "step"), [("on_train_begin", 0), ("on_step_end", 3)])
@pytest.mark.parametrize("name", ON_THE_TRAINER)
def test_what_the_step_of_transformers_reads_is_refused(
    tmp_path: Path, name: str, event: str, step: int
) -> None:
    args = fastsft.TrainingArguments(str(tmp_path), model_max_length=24, plot_loss=False, **FLAGS)
    own = type("Own", (fastsft.Trainer,), {})
    trainer: Any = own(model(), args, None, Plain())
    trainer.add_callback(at(event, lambda *_: ON_THE_TRAINER[name](trainer), step=step))
    with pytest.raises(ValueError, match=rf"{name} .*(step is the engine's)"):
        trainer.train()
    assert trainer.state.global_step == step


def test_label_names_set_before_train_are_refused(tmp_path: Path) -> None:
    trainer: Any = ours(tmp_path, Plain())
    set_label_names(trainer)
    with pytest.raises(ValueError, match=r"Trainer\.label_names was set by the script"):
        trainer.train()


@pytest.mark.parametrize("name", ["label_smoother", "model_accepts_loss_kwargs", "_train_batch_size"])
def test_properties_of_a_class_are_refused(tmp_path: Path, name: str) -> None:
    own = type("Own", (fastsft.Trainer,), {name: property(lambda self: None)})
    args = fastsft.TrainingArguments(str(tmp_path), model_max_length=24, plot_loss=False, **FLAGS)
    with pytest.raises(ValueError, match=rf"Own\.{name} was set by the script"):
        own(model(), args, None, Plain())


@pytest.mark.parametrize("kind", [transformers.DefaultFlowCallback, transformers.TrainerCallback])
def test_the_default_flow_stays(tmp_path: Path, kind: type) -> None:
    """DefaultFlowCallback cannot be removed; in transformers, that changes logs and the end of a run."""
    trainer = ours(tmp_path, Plain())
    for remove in (trainer.remove_callback, trainer.pop_callback, trainer.callback_handler.pop):
        with pytest.raises(ValueError, match=rf"removing {kind.__name__} has no effect here"):
            remove(kind)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.callback_handler.callbacks.clear()
    with pytest.raises(ValueError, match=r"callback_handler\.callbacks without DefaultFlow"):
        trainer.train()


def test_the_default_flow_stays_in_mid_run(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain())
    handler = trainer.callback_handler
    trainer.add_callback(at("on_step_end", lambda args, control: handler.callbacks.clear(), step=1))
    with pytest.raises(ValueError, match=r"callback_handler\.callbacks without DefaultFlow"):
        trainer.train()


@pytest.mark.parametrize("name", ["should_training_stop", "should_epoch_stop"])
def test_a_stop_inside_a_step_is_refused(tmp_path: Path, name: str) -> None:
    trainer = ours(tmp_path, Plain(), gradient_accumulation_steps=2)
    trainer.add_callback(at("on_substep_end", lambda args, control: setting(**{name: True})(control), step=1))
    with pytest.raises(ValueError, match=rf"control\.{name} is set .* at on_substep_end.*in on_step_end"):
        trainer.train()


@pytest.mark.parametrize("seed", [None, 3])
def test_the_seed_of_the_order_is_that_of_the_trainer(tmp_path: Path, seed: int | None) -> None:
    found = []
    for make in (theirs, ours):
        trainer = make(tmp_path / make.__name__, Plain(), data_seed=seed)
        trainer.args.data_seed = 7
        trainer.train()
        trainer.train()
        found.append(curve(trainer))
    check_equal(found[1], found[0])


def test_no_steps_are_refused(tmp_path: Path) -> None:
    """--max_steps 0 is refused, while transformers trains one step."""
    other = theirs(tmp_path, Plain(), max_steps=0)
    assert other.train().global_step == 1
    with pytest.raises(ValueError, match=r"--max_steps: expected the number of steps, or -1 .*got 0"):
        ours(tmp_path, Plain(), max_steps=0)
