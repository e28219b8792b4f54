"""A given model while train() runs: who reads it sees what transformers shows, and what is written counts."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from trainer_pairs import Plain, check_equal, curve, model, ours, theirs, unrounded

EVENTS = [
    "on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step",
    "on_step_end", "on_prediction_step", "on_evaluate", "on_save", "on_epoch_end", "on_train_end",
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def size(module: Any) -> float:
    return float(sum(parameter.detach().double().abs().sum() for parameter in module.parameters()))


class Seen:
    """What the parts of a script see of its model, in their order: who, whether it trains, its weights."""

    def __init__(self, module: Any) -> None:
        self.module, self.notes = module, []

    def note(self, who: str) -> None:
        self.notes.append((who, self.module.training, size(self.module)))

    def callback(self) -> transformers.TrainerCallback:
        def listener(event: str) -> Callable[..., None]:
            return lambda *_, model, **__: self.notes.append((event, model.training, size(model)))

        own = {event: staticmethod(listener(event)) for event in EVENTS}
        return type("Looking", (transformers.TrainerCallback,), own)()

    def data(self, rows: int) -> Plain:
        class Looking(Plain):
            def note(inner, row: int) -> None:
                super().note(row)
                self.note("item")

        return Looking(rows)

    def collate(self, items: Any) -> Any:
        self.note("collator")
        return transformers.default_data_collator(items)

    def metrics(self, _: Any) -> dict[str, float]:
        self.note("compute_metrics")
        return {"x": 1.0}

    def hook(self, logits: Any, _: Any) -> Any:
        self.note("preprocess_logits_for_metrics")
        return logits.argmax(-1)


def in_order(notes: list[Any]) -> list[Any]:
    """Batches of an evaluation go twice through the engine: hooks come after the events of all batches."""
    within = ("on_prediction_step", "preprocess_logits_for_metrics")
    found: list[Any] = []
    for note in notes:
        if note[0] not in within or not found or found[-1][0] != "batches" or note[1:] != found[-1][1:3]:
            found.append(["batches", *note[1:], 0] if note[0] in within else list(note))
        if note[0] in within:
            found[-1][3] += 1
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_every_part_of_a_script_sees_the_model_of_transformers(tmp_path: Path, workers: int) -> None:
    """Processes that load have a copy, whose notes nobody gets: there the callbacks are compared."""
    notes = []
    for make in (theirs, ours):
        seen = Seen(model())
        trainer = make(
            tmp_path / make.__name__, seen.data(6), seen.data(4), collator=seen.collate, module=seen.module,
            eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
            dataloader_num_workers=workers,
        )  # fmt: skip
        trainer.compute_metrics, trainer.preprocess_logits_for_metrics = seen.metrics, seen.hook
        trainer.add_callback(seen.callback())
        trainer.evaluate()
        trainer.train()
        seen.note("the script")
        trainer.predict(seen.data(3))
        notes.append(in_order(seen.notes))
    assert [note[:2] for note in notes[1]] == [note[:2] for note in notes[0]]
    check_equal([note[2] for note in notes[1]], [note[2] for note in notes[0]], 1e-6)
    assert len({round(note[2], 3) for note in notes[0]}) > 5


class Averaged:
    """An average of the weights, made of what `read` gives; swapped in for evaluations and at the end."""

    def __init__(self, module: Any, read: Callable[[], list[torch.Tensor]]) -> None:
        self.module, self.read = module, read
        self.average = [parameter.detach().clone() for parameter in module.parameters()]
        self.kept: list[torch.Tensor] = []

    def update(self) -> None:
        for mean, now in zip(self.average, self.read(), strict=True):
            mean.mul_(0.5).add_(now.detach(), alpha=0.5)

    def swap(self, values: list[torch.Tensor]) -> None:
        self.kept = [now.detach().clone() for now in self.read()]
        for parameter, value in zip(self.read(), values, strict=True):
            parameter.data.copy_(value)

    def callback(self) -> transformers.TrainerCallback:
        def on_step_end(_: Any, args: Any, state: Any, control: Any, **__: Any) -> None:
            self.update()
            if state.global_step % 2 == 0:
                self.swap(self.average)
                control.should_evaluate = True

        own = {
            "on_step_end": on_step_end,
            "on_evaluate": lambda *_, **__: self.swap(self.kept),
            "on_train_end": lambda *_, **__: self.swap(self.average),
        }
        return type("Averaging", (transformers.TrainerCallback,), own)()


def by_name(module: Any) -> Callable[[], list[torch.Tensor]]:
    return lambda: [parameter for _, parameter in module.named_parameters()]


def by_list(module: Any) -> Callable[[], list[torch.Tensor]]:
    held = list(module.parameters())
    return lambda: held


def by_weak_references(module: Any) -> Callable[[], list[torch.Tensor]]:
    held = [weakref.ref(parameter) for parameter in module.parameters()]
    return lambda: [reference() for reference in held]


def by_state_dict(module: Any) -> Callable[[], list[torch.Tensor]]:
    names = [name for name, _ in module.named_parameters()]
    held = module.state_dict()
    return lambda: [held[name] for name in names]


@pytest.mark.variants("by_list", "by_weak")
@pytest.mark.parametrize("read", [by_name, by_list, by_weak_references, by_state_dict])
def test_averages_of_the_weights(tmp_path: Path, read: Any) -> None:
    """The average, evaluations with it, the training after them, and what is saved at the end."""
    curves, saved = [], []
    for make in (theirs, ours):
        module = model()
        trainer = make(tmp_path / make.__name__, Plain(), Plain(5), module=module)
        trainer.add_callback(Averaged(module, read(module)).callback())
        trainer.train()
        trainer.save_model(str(tmp_path / "saved" / make.__name__))
        curves.append([*curve(trainer), *curve(trainer, "eval_loss")])
        saved.append(size(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved" / make.__name__)))
    check_equal(curves[1], curves[0])
    check_equal(saved[1:], saved[:1], 1e-6)


def copied(module: Any, _: Any) -> None:
    """AveragedModel of torch, whose copy is not watched."""
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    module.load_state_dict(averaged.module.state_dict())
    with torch.no_grad():
        module.lm_head.weight.mul_(0.9)


def halved(module: Any, _: Any) -> None:
    module.lm_head.weight.data *= 0.5


def held_and_then_read(module: Any, callback: Any) -> None:
    """A weight that the script holds is written, and then all are read."""
    vars(callback).setdefault("held", module.lm_head.weight).data *= 0.5
    size(module)


def of_a_copy(module: Any, _: Any) -> None:
    other = copy.deepcopy(module)
    other.lm_head.weight.data *= 0.5
    module.model.norm.weight.data.copy_(other.lm_head.weight.data.abs().mean(0))


@pytest.mark.covering
@pytest.mark.parametrize("event", ["on_train_begin", "on_step_begin", "on_step_end", "on_epoch_end"])
@pytest.mark.parametrize("change", [halved, copied, held_and_then_read, of_a_copy])
def test_weights_that_a_callback_writes_count(tmp_path: Path, change: Any, event: str) -> None:
    curves, ends = [], []
    for make in (theirs, ours):
        trainer = make(
            tmp_path / make.__name__, Plain(), Plain(5), save_strategy="steps", save_steps=3,
            eval_strategy="steps", eval_steps=2, num_train_epochs=1,
        )  # fmt: skip
        changing = {event: lambda self, *_, model, **__: change(getattr(model, "module", model), self)}
        trainer.add_callback(type("Changing", (transformers.TrainerCallback,), changing)())
        trainer.train()
        curves.append([*curve(trainer), *curve(trainer, "eval_loss")])
        files = [tmp_path / make.__name__ / f"checkpoint-{step}" for step in (3, 4)]
        ends.append([size(transformers.LlamaForCausalLM.from_pretrained(file)) for file in files])
    check_equal(curves[1], curves[0])
    check_equal(ends[1], ends[0], 1e-5)


def test_a_replaced_parameter_is_refused(tmp_path: Path) -> None:
    def replace(self: Any, *_: Any, model: Any, **__: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() / 2)

    trainer = ours(tmp_path, Plain())
    trainer.add_callback(type("Replacing", (transformers.TrainerCallback,), {"on_step_end": replace})())
    with pytest.raises(ValueError, match=r"lm_head\.weight of the model was replaced by another parameter"):
        trainer.train()
    assert type(trainer.model.module.lm_head._parameters) is dict
