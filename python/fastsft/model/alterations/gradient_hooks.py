"""Forward hooks that only set requires_grad of the output, known by what their code does."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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


def only_asks_for_gradients(hook: object) -> bool:
    """True if `hook(module, input, output)` does nothing but ask for a gradient of its output, a tensor."""
    if not isinstance(hook, FunctionType):
        return False
    code = hook.__code__
    is_plain = code.co_argcount == 3 and not code.co_kwonlyargcount and not code.co_flags & _UNUSUAL
    return is_plain and _steps(code) in _KNOWN


def _steps(code: CodeType) -> tuple[tuple[str, object], ...]:
    """Its instructions; local variables by their position, so that names do not count."""
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
