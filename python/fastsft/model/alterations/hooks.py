"""Hooks on modules and parameters, which would never be called: the engine runs no module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import Alteration, path_of
from fastsft.model.alterations.gradient_hooks import only_asks_for_gradients
from fastsft.originals.functions import described, is_defined_there, is_written_in

if TYPE_CHECKING:
    from torch import nn

_OF_MODULES = {
    "_forward_hooks": "forward hook", "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook", "_backward_pre_hooks": "backward pre-hook",
}  # fmt: skip
_OF_PARAMETERS = {"_backward_hooks": "gradient hook", "_post_accumulate_grad_hooks": "post-accumulate hook"}
# FlopCounterMode's and others of torch, which note names and sizes and return nothing.
_OBSERVING = (
    "torch.utils.module_tracker",
    "torch.utils.flop_counter",
    "torch.profiler",
    "torch.autograd.profiler",
)
_NATIVE = "the step without it"
_WAY_OUT = "call remove() of its handle before the Trainer is made, or train with transformers' Trainer"


def hooks_of(model: nn.Module) -> Iterator[Alteration]:
    """Every hook that a forward or backward of `model` would call. Those of state dicts change no step."""
    for name, module in model.named_modules(remove_duplicate=False):
        for table, kind in _OF_MODULES.items():
            for number, hook in vars(module).get(table, {}).items():
                asks = table == "_forward_hooks" and _only_asks_for_gradients(module, number, hook)
                if not asks and not _only_observes(hook):
                    yield _hook(path_of(name), kind, hook)
    for name, parameter in model.named_parameters():
        for table, kind in _OF_PARAMETERS.items():
            for hook in (getattr(parameter, table, None) or {}).values():
                if not _only_observes(hook):
                    yield _hook(path_of(name), kind, hook)


def global_hooks() -> Iterator[Alteration]:
    """Hooks that torch calls for every module of the process."""
    for kind, hook in _of_the_process():
        if not _only_observes(hook):
            yield _hook("torch.nn.modules.module", f"global {kind}", hook)


def observers() -> Iterator[str]:
    """A notice for hooks of the process by which torch counts, and which the engine's step calls nowhere."""
    for kind, hook in _of_the_process():
        if _only_observes(hook):
            yield f"{described(hook)}, a global {kind}, sees nothing of fastsft's step: it counts 0"


def _of_the_process() -> Iterator[tuple[str, object]]:
    tables = vars(sys.modules["torch.nn.modules.module"]) if "torch" in sys.modules else {}
    for table, kind in _OF_MODULES.items():
        for hook in (tables.get(f"_global{table}") or {}).values():
            yield kind, hook


def _hook(where: str, kind: str, hook: object) -> Alteration:
    return Alteration(where, f"has a {kind}, {described(hook)}", _NATIVE, _WAY_OUT)


def _only_observes(hook: object) -> bool:
    return any(is_written_in(hook, home) for home in _OBSERVING)


def _only_asks_for_gradients(module: nn.Module, number: int, hook: object) -> bool:
    """Sets requires_grad of the embedding's output, which has it: enable_input_require_grads, or by hand."""
    is_embedding = type(module) is sys.modules["torch"].nn.Embedding
    if is_embedding and number not in module._forward_hooks_with_kwargs and only_asks_for_gradients(hook):
        return True
    owner = "PreTrainedModel.enable_input_require_grads.<locals>.make_inputs_require_grads"
    return "transformers.modeling_utils" in sys.modules and is_defined_there(
        hook, "transformers.modeling_utils", owner
    )
