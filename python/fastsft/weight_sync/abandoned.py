"""Operations that were given up while their backend still works on them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_held: list[tuple[list[Any], Any]] = []
# One reference that nobody gives back: what is under way when the process ends is held to its very end.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))
_holding = threading.Lock()


def hold(flying: Mapping[Any, Sequence[torch.Tensor]]) -> None:
    """Keep the tensors of each operation, in C++, until it is done.

    gloo cannot abort an operation: its thread lets go of the tensors at the deadline. Were it the last (torch
    2.11), it would ask for the interpreter, and a process that ends just then is aborted (SIGABRT).
    """
    from fastsft import _C

    with _holding:
        _held[:] = [each for each in _held if not all(map(_is_over, each[0]))]
        if flying:
            tensors = [tensor for several in flying.values() for tensor in several]
            _held.append((list(flying), _C.HeldTensors(tensors)))


def _is_over(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # a device that has failed finishes nothing any more
        return True
