"""Methods that a script replaced in classes of libraries, and on the model, which the original calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate.data_loader
import accelerate.optimizer
import pytest
import torch
import torch.nn.utils.clip_grad
import transformers
from torch._dynamo.eval_frame import TorchPatcher
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

import fastsft
from trainer_pairs import FLAGS, Plain, check_equal, losses, model, ours, theirs, unrounded

Wrap = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)


def reversed_batches(old: Any) -> Any:
    return lambda self: iter(reversed(list(old(self))))


def fewer_labels(old: Any) -> Any:
    def send(batch: Any, *given: Any, **named: Any) -> Any:
        batch = old(batch, *given, **named)
        batch["labels"][:, :12] = -100
        return batch

    return send


def nothing(old: Any) -> Any:
    return lambda *_, **__: None


def stop_at_two(old: Any) -> Any:
    def listen(self: Any, args: Any, state: Any, control: Any, **given: Any) -> Any:
        control = old(self, args, state, control, **given) or control
        control.should_training_stop |= state.global_step >= 2
        return control

    return listen


def in_order(old: Any) -> Any:
    return lambda self: iter(range(len(self.data_source)))


def half_rates(old: Any) -> Any:
    def begin(self: Any, optimizer: Any, rate: Any, *given: Any, **named: Any) -> None:
        old(self, optimizer, lambda step: rate(step) / 2, *given, **named)

    return begin


def fewer_columns(old: Any) -> Any:
    def collate(self: Any, rows: Any) -> Any:
        batch = old(self, rows)
        batch["labels"][:, :12] = -100
        return batch

    return collate


def doubled_log_softmax(old: Any) -> Any:
    return lambda *given, **named: 2 * old(*given, **named)


def tripled_loss(old: Any) -> Any:
    def backward(tensors: Any, *given: Any, **named: Any) -> Any:
        return old([3 * each for each in tensors] if isinstance(tensors, tuple) else 3 * tensors,
                   *given, **named)  # fmt: skip

    return backward


CLIP = torch.nn.utils.clip_grad
ARGUMENTS = transformers.TrainingArguments
# Owner, name, what is put there, where the refusal says it is, and the way out.
PATCHES: list[tuple[Any, str, Wrap, str, str]] = [
    (torch.utils.data.BatchSampler, "__iter__", reversed_batches, "BatchSampler.__iter__", "sequential"),
    (torch, "randperm", lambda _: lambda n, **__: torch.arange(n), "torch.randperm", "sequential"),
    (accelerate.data_loader, "send_to_device", fewer_labels, "data_loader.send_to_device", "train_dataset"),
    (accelerate.Accelerator, "prepare_data_loader",
     lambda _: lambda self, loader, **named: [next(iter(loader))] * len(loader),
     "Accelerator.prepare_data_loader", "arguments"),
    (CLIP, "_clip_grads_with_norm_", nothing, "clip_grad._clip_grads_with_norm_", "max_grad_norm"),
    (CLIP, "_get_total_norm", lambda old: lambda *a, **k: 100 * old(*a, **k), "clip_grad._get_total_norm",
     "max_grad_norm"),
    (torch.nn.Module, "zero_grad", nothing, "Module.zero_grad", "max_grad_norm"),
    (torch.autograd, "backward", tripled_loss, "torch.autograd.backward", "max_grad_norm"),
    (accelerate.optimizer.AcceleratedOptimizer, "step", nothing, "AcceleratedOptimizer.step", "weight_decay"),
    (CallbackHandler, "on_step_end", stop_at_two, "CallbackHandler.on_step_end", r"callbacks=\["),
    (DefaultFlowCallback, "on_step_begin", stop_at_two, "DefaultFlowCallback.on_step_begin", r"callbacks=\["),
    (accelerate.data_loader.SeedableRandomSampler, "__iter__", in_order, "SeedableRandomSampler.__iter__",
     "sequential"),
    (torch.optim.lr_scheduler.LambdaLR, "__init__", half_rates, "LambdaLR.__init__", "lr_scheduler_kwargs"),
    (transformers.trainer.RemoveColumnsCollator, "__call__", fewer_columns, "RemoveColumnsCollator.__call__",
     "remove_unused_columns False"),
    (torch.nn.functional, "log_softmax", doubled_log_softmax, "functional.log_softmax",
     "label_smoothing_factor 0"),
    (ARGUMENTS, "get_warmup_steps", lambda _: lambda self, steps: 4, "get_warmup_steps", "set the fields"),
    (ARGUMENTS, "train_batch_size", lambda _: property(lambda self: 4), "train_batch_size", "set the fields"),
]  # fmt: skip
UNCLIPPED = {
    "log_softmax": {"label_smoothing_factor": 0.1},
    "backward": {"max_grad_norm": 1e9},
    "get_warmup_steps": {"lr_scheduler_type": "linear"},
}


@pytest.mark.variants(
    "BatchSampler.__iter__",
    "torch.randperm",
    "Accelerator.prepare",
    "_get_total_norm",
    "AcceleratedOptimizer",
    "train_batch_size",
    "CallbackHandler",
    "LambdaLR",
)
@pytest.mark.parametrize(("owner", "name", "wrap", "where", "way_out"), PATCHES, ids=[p[3] for p in PATCHES])
def test_a_method_that_changes_the_original_is_named(
    owner: Any, name: str, wrap: Wrap, where: str, way_out: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    flags: dict[str, Any] = UNCLIPPED.get(name, {})
    before = losses(theirs(tmp_path / "before", Plain(), **flags))
    trainer = ours(tmp_path / "ours", Plain(), **flags)
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)), raising=False)
    after = losses(theirs(tmp_path / "after", Plain(), **flags))
    assert after != before, "the patch does nothing in the original"
    args = transformers.TrainingArguments(str(tmp_path / "given"), **{**FLAGS, **flags})
    for make, caller in (
        (trainer.train, "Trainer.train: "),
        (lambda: ours(tmp_path / "later", Plain(), **flags), "Trainer: "),
        (lambda: fastsft.Trainer(model(), args, train_dataset=Plain()), "Trainer: "),
    ):
        with pytest.raises(ValueError, match=way_out) as error:
            make()
        text = str(error.value)
        assert text.startswith(caller) and where in text and "\n" not in text
    monkeypatch.undo()
    unrounded(monkeypatch)
    check_equal(losses(ours(tmp_path / "free", Plain(), **flags)), before)


def heads_alone(module: Any) -> Any:
    old = module.named_parameters
    return lambda *a, **k: (item for item in old(*a, **k) if "norm" in item[0])


MODEL_PATCHES: dict[str, Wrap] = {
    "zero_grad": lambda module: lambda *_, **__: None,
    "parameters": lambda module: lambda *_, **__: list(type(module).parameters(module))[:2],
    "named_parameters": heads_alone,
}


@pytest.mark.parametrize("name", MODEL_PATCHES)
def test_a_method_set_on_the_model_is_named(tmp_path: Path, name: str) -> None:
    found = []
    for folder in ("plain", "changed"):
        module = model()
        if folder == "changed":
            setattr(module, name, MODEL_PATCHES[name](module))
        found.append(losses(theirs(tmp_path / folder, Plain(), module=module, max_grad_norm=0.1)))
    assert found[0] != found[1], "the patch does nothing in the original"
    module = model()
    trainer = ours(tmp_path / "ours", Plain(), module=module)
    setattr(module, name, MODEL_PATCHES[name](module))
    for make in (trainer.train, lambda: ours(tmp_path / "later", Plain(), module=module)):
        with pytest.raises(ValueError, match=rf"model\.{name}") as error:
            make()
        assert "delete the attribute" in str(error.value)


def test_what_changes_nothing_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch.compile does to torch, reports, and fields that transformers' own class fills."""
    TorchPatcher.patch()

    def filled(self: Any, old: Any = ARGUMENTS.__post_init__) -> None:
        old(self)
        self.learning_rate = 0.002

    monkeypatch.setattr(ARGUMENTS, "__post_init__", filled)
    monkeypatch.setattr(ARGUMENTS, "to_json_string", lambda self: "{}")
    monkeypatch.setattr(accelerate.Accelerator, "print", nothing(None))
    monkeypatch.setattr(accelerate.Accelerator, "accumulate", nothing(None))
    expected = losses(theirs(tmp_path / "theirs", Plain()))
    args = transformers.TrainingArguments(str(tmp_path / "ours"), **FLAGS)
    check_equal(losses(fastsft.Trainer(model(), args, train_dataset=Plain())), expected)
    with pytest.raises(ValueError, match=r"TrainingArguments\.__post_init__ was replaced"):
        ours(tmp_path / "own", Plain())
