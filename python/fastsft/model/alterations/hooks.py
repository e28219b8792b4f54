"""Finds hooks on modules and parameters. The engine would never call them, because it runs no module."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from fastsft.model.alterations.alteration import Alteration, path_of
from fastsft.originals.functions import described, is_defined_there, is_written_in

if TYPE_CHECKING:
    import torch
    from torch import nn

_OF_MODULES = {
    "_forward_hooks": "forward hook", "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook", "_backward_pre_hooks": "backward pre-hook",
}  # fmt: skip
_OF_PARAMETERS = {"_backward_hooks": "gradient hook", "_post_accumulate_grad_hooks": "post-accumulate hook"}
# torch modules whose hooks only record names and sizes, and return nothing
_OBSERVING = (
    "torch.utils.module_tracker", "torch.utils.flop_counter", "torch.profiler", "torch.autograd.profiler",
)  # fmt: skip
_NATIVE = "the step without it"
_WAY_OUT = "call remove() of its handle before the Trainer is made, or train with transformers' Trainer"


def hooks_of(model: nn.Module) -> Iterator[Alteration]:
    """Yield every hook that a forward or backward pass of `model` would call."""
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
    """Yield the hooks that torch calls for every module of the process."""
    for kind, hook in _global_hooks():
        if not _only_observes(hook):
            yield _hook("torch.nn.modules.module", f"global {kind}", hook)


def observers() -> Iterator[str]:
    """Yield a notice for each global hook with which torch counts FLOPs or calls.

    The engine runs no module, so such a hook counts nothing.
    """
    for kind, hook in _global_hooks():
        if _only_observes(hook):
            yield f"{described(hook)}, a global {kind}, sees nothing of fastsft's step: it counts 0"


def _global_hooks() -> Iterator[tuple[str, object]]:
    tables = vars(sys.modules["torch.nn.modules.module"]) if "torch" in sys.modules else {}
    for table, kind in _OF_MODULES.items():
        for hook in (tables.get(f"_global{table}") or {}).values():
            yield kind, hook


def _hook(where: str, kind: str, hook: object) -> Alteration:
    return Alteration(where, f"has a {kind}, {described(hook)}", _NATIVE, _WAY_OUT)


def _only_observes(hook: object) -> bool:
    return any(is_written_in(hook, home) for home in _OBSERVING)


def _only_asks_for_gradients(module: nn.Module, number: int, hook: object) -> bool:
    """Return True for a hook that only sets requires_grad, as enable_input_require_grads registers.

    The engine need not call it, because it computes the gradients anyway.
    """
    is_embedding = type(module) is sys.modules["torch"].nn.Embedding
    if is_embedding and number not in module._forward_hooks_with_kwargs and _only_sets_requires_grad(hook):
        return True
    owner = "PreTrainedModel.enable_input_require_grads.<locals>.make_inputs_require_grads"
    return "transformers.modeling_utils" in sys.modules and is_defined_there(
        hook, "transformers.modeling_utils", owner
    )


def _returned(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_(True)


def _returned_by_default(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_()


def _returned_by_name(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_(requires_grad=True)  # type: ignore[call-arg]  # lacks in stubs


def _called(module: object, given: object, output: torch.Tensor) -> None:
    output.requires_grad_(True)


def _called_by_default(module: object, given: object, output: torch.Tensor) -> None:
    output.requires_grad_()


def _called_by_name(module: object, given: object, output: torch.Tensor) -> None:
    output.requires_grad_(requires_grad=True)  # type: ignore[call-arg]  # lacks in stubs


def _only_sets_requires_grad(hook: object) -> bool:
    """Return True if `hook(module, input, output)` only sets the requires_grad of its output."""
    if not isinstance(hook, FunctionType):
        return False
    code = hook.__code__
    is_plain = code.co_argcount == 3 and not code.co_kwonlyargcount and not code.co_flags & _UNUSUAL
    return is_plain and _steps(code) in _KNOWN


def _steps(code: CodeType) -> tuple[tuple[str, object], ...]:
    """Return the instructions in a comparable form: positions instead of local variables' names."""
    return tuple(
        (each.opname, code.co_varnames.index(each.argval) if each.argval in code.co_varnames else each.argval)
        for each in dis.get_instructions(code)
        if each.opname not in ("RESUME", "NOP", "CACHE")
    )


_UNUSUAL = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # *args, **kwargs, generators and coroutines
_FORMS: tuple[Callable[[object, object, torch.Tensor], torch.Tensor | None], ...] = (
    _returned, _returned_by_default, _returned_by_name, _called, _called_by_default, _called_by_name,
)  # fmt: skip
_KNOWN = {_steps(form.__code__) for form in _FORMS}
