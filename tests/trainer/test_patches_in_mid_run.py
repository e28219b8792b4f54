"""Functions of libraries that a script replaces while train() runs, and in ways that are hard to see."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.trainer
from transformers import modeling_utils
from transformers.models.llama import modeling_llama

from fastsft.program.checked_names import refuse_patched_classes
from trainer_pairs import Plain, check_equal, losses, ours, theirs, unrounded

Patch = Callable[[pytest.MonkeyPatch], None]


def clip(patch: pytest.MonkeyPatch) -> None:
    old = torch.nn.utils.clip_grad_norm_
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda weights, *_, **__: old(weights, 1e-3))


def step_of_adamw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)


def code_of_adam(patch: pytest.MonkeyPatch) -> None:
    def adam(*_: Any, **__: Any) -> None: ...

    patch.setattr(sys.modules["torch.optim.adam"]._single_tensor_adam, "__code__", adam.__code__)


def batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.utils.data.BatchSampler, "__iter__", lambda self: iter([[0, 1]] * 4))


def mlp(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: x)


def silu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.nn.functional, "silu", torch.nn.functional.relu)


PATCHES: dict[str, tuple[Patch, str]] = {
    "clip_grad_norm_": (clip, r"clip_grad_norm_ was replaced"),
    "AdamW.step": (step_of_adamw, r"AdamW\.step was replaced"),
    "code of adam": (code_of_adam, r"_single_tensor_adam was replaced"),
    "BatchSampler": (batches, r"BatchSampler\.__iter__ was replaced"),
    "forward": (mlp, r"LlamaMLP\.forward is replaced"),
    "silu": (silu, r"functional\.silu is replaced"),
}


@pytest.mark.covering
@pytest.mark.parametrize("name", PATCHES)
@pytest.mark.parametrize("event", ["on_step_begin", "on_pre_optimizer_step"])
def test_a_patch_by_a_callback_is_refused(tmp_path: Path, name: str, event: str) -> None:
    """A patch at the second step is refused, although it is removed again after that step."""
    patch, message = PATCHES[name]
    with pytest.MonkeyPatch.context() as context:

        def apply(self: Any, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == 1:
                patch(context)

        own = {event: apply, "on_step_end": lambda *_, **__: context.undo()}
        trainer = ours(tmp_path, Plain())
        trainer.add_callback(type("Patching", (transformers.TrainerCallback,), own)())
        with pytest.raises(ValueError, match=message):
            trainer.train()
    assert trainer.state.global_step == 1


def test_a_module_in_the_place_of_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.SimpleNamespace(**vars(torch.nn))
    monkeypatch.setattr(transformers.trainer, "nn", other)
    with pytest.raises(ValueError, match=r"transformers\.trainer\.nn was replaced by types\.SimpleNamespace"):
        ours(tmp_path, Plain())


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_of_torch_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that a script registers for an operator changes transformers' losses, and is refused."""
    unrounded(monkeypatch)
    before = losses(theirs(tmp_path / "a", Plain(4), num_train_epochs=1))
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("silu", lambda x: x * 0.5, "CPU")
        assert losses(theirs(tmp_path / "b", Plain(4), num_train_epochs=1)) != before
        with pytest.raises(ValueError, match=r"kernel of the script for aten::silu \(CPU\)"):
            ours(tmp_path / "c", Plain(4))
    finally:
        library._destroy()
    check_equal(losses(ours(tmp_path / "d", Plain(4), num_train_epochs=1)), before)


def test_an_event_that_does_nothing_may_be_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unrounded(monkeypatch)
    expected = losses(theirs(tmp_path / "a", Plain(4)))

    def on_substep_end(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Nothing."""

    monkeypatch.setattr(transformers.TrainerCallback, "on_substep_end", on_substep_end)
    check_equal(losses(ours(tmp_path / "b", Plain(4))), expected)
    monkeypatch.setattr(transformers.TrainerCallback, "on_substep_end", lambda *_, **__: print("here"))
    with pytest.raises(ValueError, match=r"TrainerCallback\.on_substep_end was replaced"):
        ours(tmp_path / "c", Plain(4))


def test_how_checkpoints_save_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may set use_reentrant=False by functools.partial; any other function is refused."""
    own = modeling_utils.checkpoint
    monkeypatch.setattr(modeling_utils, "checkpoint", functools.partial(own, use_reentrant=False))
    refuse_patched_classes(tmp_path, "llama", "Llama", uses_tokenizer=False)
    for other in (functools.partial(own, context_fn=print), functools.partial(print), print):
        monkeypatch.setattr(modeling_utils, "checkpoint", other)
        with pytest.raises(ValueError, match=r"modeling_utils\.checkpoint was replaced"):
            refuse_patched_classes(tmp_path, "llama", "Llama", uses_tokenizer=False)
