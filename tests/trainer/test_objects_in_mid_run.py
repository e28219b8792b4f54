"""Changes by callbacks to a given model's objects while train() runs are refused before the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fastsft.originals.snapshots import ModuleSnapshot
from trainer_pairs import Plain, check_equal, curve, losses, model, ours, theirs, unrounded


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def setting(path: str, name: str, value: Any) -> Callable[[Any], None]:
    return lambda module: setattr(module.get_submodule(path), name, value)


def no_forward(module: Any) -> None:
    module.model.layers[0].mlp.forward = lambda x: x


def other_class(module: Any) -> None:
    module.lm_head.__class__ = type("Head", (torch.nn.Linear,), {})


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "frozen": (lambda m: m.lm_head.requires_grad_(False), r"lm_head\.weight is frozen"),
    "hook": (
        lambda m: m.lm_head.register_forward_hook(lambda *_: None),
        r"model\.lm_head has a forward hook",
    ),
    "pre-hook": (lambda m: m.register_forward_pre_hook(lambda *_: None), r"model has a forward pre-hook"),
    "gradient hook": (
        lambda m: m.lm_head.weight.register_hook(lambda g: g / 2),
        r"lm_head\.weight has a grad",
    ),
    "forward": (no_forward, r"layers\[0\]\.mlp\.forward is replaced"),
    "one eps": (
        setting("model.norm", "variance_epsilon", 0.5),
        r"model\.model\.norm\.variance_epsilon is 0\.5",
    ),
    "scaling": (
        setting("model.layers.0.self_attn", "scaling", 0.5),
        r"layers\[0\]\.self_attn\.scaling is 0\.5",
    ),
    "dropout": (setting("model.layers.0.self_attn", "attention_dropout", 0.5), r"attention_dropout is 0\.5"),
    "frequencies": (lambda m: m.model.rotary_emb.inv_freq.mul_(0.5), r"were changed .*: inv_freq"),
    "data": (lambda m: m.model.rotary_emb.inv_freq.data.mul_(0.5), r"were changed .*: inv_freq"),
    "a module": (setting("", "lm_head", torch.nn.Identity()), r"lm_head is torch.nn.modules.linear.Identity"),
    "its class": (other_class, r"model\.lm_head is .*Head"),
    "loss": (setting("", "loss_function", lambda *_, **__: 0), r"model\._?loss_function is replaced"),
}


def calling(change: Callable[[Any], Any], *events: str, step: int = 1) -> transformers.TrainerCallback:
    def listen(self: Any, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step == step:
            change(getattr(model, "module", model))

    return type("Changing", (transformers.TrainerCallback,), dict.fromkeys(events, listen))()


@pytest.mark.covering
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end"])
def test_a_changed_object_is_refused_before_the_next_step(tmp_path: Path, name: str, event: str) -> None:
    change, message = CHANGES[name]
    trainer = ours(tmp_path, Plain())
    trainer.add_callback(calling(change, event))
    with pytest.raises(ValueError, match=rf"Trainer.*{message}"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_a_change_between_the_passes_of_a_step_is_refused(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(), gradient_accumulation_steps=2)
    trainer.add_callback(calling(no_forward, "on_substep_end"))
    with pytest.raises(ValueError, match=r"after on_substep_end: .*mlp\.forward is replaced"):
        trainer.train()


def test_a_change_before_an_evaluation_is_refused(tmp_path: Path) -> None:
    trainer = ours(tmp_path, Plain(), Plain(5), eval_strategy="steps", eval_steps=8, num_train_epochs=2)
    trainer.add_callback(calling(no_forward, "on_step_end", step=8))
    with pytest.raises(ValueError, match=r"Trainer\.evaluate: .*mlp\.forward is replaced"):
        trainer.train()


def taken_back(module: Any) -> None:
    handle = module.lm_head.register_forward_hook(lambda *_: None)
    module.requires_grad_(False)
    module.requires_grad_(True)
    handle.remove()


def of_its_own(module: Any) -> None:
    ids = torch.arange(1, 9)[None]
    module(ids, labels=ids).loss.backward()
    module.zero_grad()
    module.eval()


HARMLESS: dict[str, Callable[[Any], Any]] = {
    "taken back": taken_back,
    "a pass of its own": of_its_own,
    "configuration": lambda module: setattr(module.config, "use_cache", True),
    "a note": lambda module: setattr(module, "note", 3),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing_is_trained_over(tmp_path: Path, name: str) -> None:
    found = []
    for make in (theirs, ours):
        trainer = make(tmp_path / make.__name__, Plain(), num_train_epochs=1)
        trainer.add_callback(calling(HARMLESS[name], "on_step_begin"))
        found.append(losses(trainer))
    check_equal(found[1], found[0])


def left_gradient(module: Any) -> None:
    module.lm_head.weight.grad = torch.ones_like(module.lm_head.weight)


def test_a_gradient_that_is_left_is_refused(tmp_path: Path) -> None:
    """A gradient set by a callback is refused, as transformers' next step would add to it.

    A gradient from before train() is removed.
    """
    module = model()
    left_gradient(module)
    trainer = ours(tmp_path, Plain(), module=module)
    trainer.add_callback(calling(left_gradient, "on_step_end"))
    with pytest.raises(ValueError, match=r"lm_head\.weight of the model has a gradient .*zero_grad\(\)"):
        trainer.train()
    assert trainer.state.global_step == 1


READS: dict[str, Callable[[Any], Any]] = {
    "norms": lambda m: sum(p.grad.norm() for p in m.parameters() if p.grad is not None),
    "set": left_gradient,
    "clipped": lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1),
    "zeroed": lambda m: m.zero_grad(),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("event", ["on_substep_end", "on_pre_optimizer_step", "on_optimizer_step"])
def test_gradients_of_a_step_are_refused(tmp_path: Path, name: str, event: str) -> None:
    trainer = ours(tmp_path, Plain(), gradient_accumulation_steps=2)
    trainer.add_callback(calling(READS[name], event))
    with pytest.raises(ValueError, match=rf"a callback's {event} asks for the gradient of .*weight"):
        trainer.train()
    assert {type(parameter) for parameter in trainer.model.module.parameters()} == {torch.nn.Parameter}


def test_gradients_are_none_where_they_are_none_in_transformers(tmp_path: Path) -> None:
    found = []
    for make in (theirs, ours):
        seen: list[Any] = []
        events = ("on_train_begin", "on_step_begin", "on_step_end", "on_log", "on_epoch_end", "on_train_end")
        trainer = make(tmp_path / make.__name__, Plain(), num_train_epochs=1)
        for step in range(5):
            trainer.add_callback(
                calling(lambda m, s=seen: s.append(m.lm_head.weight.grad), *events, step=step)
            )
        trainer.train()
        found.append(seen)
        assert len(curve(trainer)) == 4
    assert found[1] == found[0] == [None] * len(found[0])


def test_marks_of_a_model() -> None:
    """A snapshot finds no change after a switch between training and evaluation mode."""
    module = model()
    marks = ModuleSnapshot(module)
    assert not marks.changed()
    module.eval()
    assert not marks.changed()
    module.model.rotary_emb.inv_freq[0] = 7.0
    assert marks.changed()
