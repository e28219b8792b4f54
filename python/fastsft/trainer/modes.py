"""Modes of torch that a script is in: they see each operation of torch, and none of the engine."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

from fastsft.originals.classes import is_class_of
from fastsft.originals.functions import described, is_written_in, plain
from fastsft.runtime.messages import warn_once

_COUNTING = ("torch.utils.flop_counter",)


def check_modes() -> None:
    """ValueError inside of a TorchFunctionMode or TorchDispatchMode that is a script's own.

    torch's change no result (a default device, a count of operations); a line where they would count.
    """
    check_saved_tensors()
    from torch import overrides
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    function_modes: Callable[[], list[object]] = overrides._get_current_function_mode_stack
    for mode in (*function_modes(), *_get_current_dispatch_mode_stack()):
        if not _is_torchs(type(mode)):
            raise ValueError(
                f"Trainer.train: {described(type(mode))} is on, a mode that torch asks for each "
                "operation and the engine does not; call train() outside of it, or train with transformers' "
                "Trainer"
            )
        if type(mode).__module__ in _COUNTING:
            warn_once("FlopCounterMode counts operations of torch alone, and the engine's step has none")


def check_saved_tensors() -> None:
    """ValueError inside of saved_tensors_hooks of a script; those of torch change nothing."""
    import torch

    for hook in torch._C._autograd._top_saved_tensors_default_hooks(True) or ():
        if not is_written_in(plain(hook), "torch"):
            raise ValueError(
                f"Trainer.train: saved_tensors_hooks with {described(hook)} are on, which autograd asks for "
                "each tensor that it saves, and the engine saves none there; call train() outside of them, "
                "or train with transformers' Trainer"
            )


def _is_torchs(kind: type) -> bool:
    asked = [getattr(kind, name, None) for name in ("__torch_function__", "__torch_dispatch__")]
    written = [plain(method) for method in asked if isinstance(plain(method), FunctionType)]
    return is_class_of(kind, "torch") and all(is_written_in(method, "torch") for method in written)
