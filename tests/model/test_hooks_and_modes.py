"""Hooks that change nothing are trained over, modes and classes of tensors that compute are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from altered_runs import load, our_losses, ours, their_losses


def make_inputs_require_grad(module: Any, given: Any, output: Any) -> None:
    """As scripts of LLaVA and Qwen have it."""
    output.requires_grad_(True)


def setting(module: Any, given: Any, output: Any) -> None:
    """With transformers torch's RuntimeError: the output is no leaf."""
    output.requires_grad = True


def doubling(module: Any, given: Any, output: Any) -> Any:
    return (output * 2).requires_grad_(True)


def freezing(module: Any, given: Any, output: Any) -> None:
    output.requires_grad_(False)


ASKING: dict[str, Callable[..., Any]] = {
    "named": make_inputs_require_grad,
    "lambda": lambda m, i, o: o.requires_grad_(True),
    "by default": lambda m, i, o: o.requires_grad_(),
    "by name": lambda m, i, o: o.requires_grad_(requires_grad=True),
}


@pytest.mark.parametrize("hook", ASKING)
def test_hooks_that_ask_for_gradients_are_trained_over(hook: str, tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    for model in (first, second):
        model.get_input_embeddings().register_forward_hook(ASKING[hook])
    assert our_losses(ours(second, tmp_path)) == pytest.approx(their_losses(first, tmp_path), rel=1e-5)


@pytest.mark.parametrize("hook", [doubling, freezing, setting, lambda m, i, o: i[0].requires_grad_(True)])
def test_hooks_that_do_more_are_refused(hook: Any, tmp_path: Path) -> None:
    model = load(tmp_path)
    model.get_input_embeddings().register_forward_hook(hook)
    with pytest.raises(ValueError, match=r"model\.model\.embed_tokens has a forward hook"):
        ours(model, tmp_path)


def test_such_a_hook_elsewhere_is_refused(tmp_path: Path) -> None:
    """An attention gives no tensor: transformers' step would fail."""
    model = load(tmp_path)
    model.model.layers[0].self_attn.register_forward_hook(make_inputs_require_grad)
    with pytest.raises(ValueError, match="has a forward hook"):
        ours(model, tmp_path)


class Doubled(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.nn.functional.silu else made


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Doubled, Dispatched])
def test_modes_of_a_script_are_refused(mode: Any, tmp_path: Path) -> None:
    trainer = ours(load(tmp_path), tmp_path)
    with mode(), pytest.raises(ValueError, match=rf"test_hooks_and_modes\.{mode.__name__} is on, a mode"):
        trainer.train()


def test_such_a_mode_changes_the_losses_of_transformers(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    with Doubled():
        changed = their_losses(first, tmp_path)
    assert changed != pytest.approx(their_losses(second, tmp_path), rel=1e-5)


def test_hooks_of_saved_tensors_are_refused(tmp_path: Path) -> None:
    """A script's own see what autograd saves; those that move it to the CPU and back change nothing."""

    def halved(saved: torch.Tensor) -> torch.Tensor:
        return saved / 2 if saved.is_floating_point() else saved

    first, second = load(tmp_path), load(tmp_path)
    before = their_losses(load(tmp_path), tmp_path)
    with torch.autograd.graph.saved_tensors_hooks(halved, lambda saved: saved):
        assert their_losses(first, tmp_path) != pytest.approx(before, rel=1e-5)
        with pytest.raises(ValueError, match=r"saved_tensors_hooks with .*halved are on"):
            ours(second, tmp_path).train()
    with torch.autograd.graph.save_on_cpu():
        assert our_losses(ours(load(tmp_path), tmp_path)) == pytest.approx(before, rel=1e-5)


OBSERVING: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "flops": lambda: FlopCounterMode(display=False),
    "device": lambda: torch.device("cpu"),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
}


@pytest.mark.parametrize("mode", OBSERVING)
def test_modes_of_torch_are_trained_under(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("fastsft.trainer.compat.guard.warn_once", said.append)
    first, second = load(tmp_path), load(tmp_path)
    with OBSERVING[mode]():
        expected = their_losses(first, tmp_path)
    trainer = ours(second, tmp_path)
    with OBSERVING[mode]():
        assert our_losses(trainer) == pytest.approx(expected, rel=1e-5)
    assert [line.split(" of torch")[0] for line in said] == ["FlopCounterMode counts operations"] * (
        mode == "flops"
    )


class Scaled(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs or {})
        return made * 2 if function is torch.nn.functional.linear else made


class Named(torch.nn.Parameter):
    """Marks which parameters are whose."""

    def __repr__(self) -> str:
        return "a parameter"


def test_parameters_that_compute_are_refused(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    first.lm_head.weight = Scaled(first.lm_head.weight.detach())
    with pytest.raises(
        ValueError, match=r"model\.lm_head\.weight is of .*Scaled, which has its own __torch_f"
    ):
        ours(first, tmp_path)
    assert their_losses(first, tmp_path) != pytest.approx(their_losses(second, tmp_path), rel=1e-5)


def test_parameters_with_another_name_are_trained(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    for model in (first, second):
        model.lm_head.weight = Named(model.lm_head.weight.detach())
    assert our_losses(ours(second, tmp_path)) == pytest.approx(their_losses(first, tmp_path), rel=1e-5)
