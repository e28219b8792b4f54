"""Operations that were given up while their backend still works on them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class _Held(NamedTuple):
    works: list[Any]
    tensors: Any  # _C.HeldTensors
    group: Any


_held: list[_Held] = []
# One reference that nobody gives back: what is under way when the process ends is held to its very end.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))
_holding = threading.Lock()


def hold(group: Any, flying: Mapping[Any, Sequence[torch.Tensor]]) -> None:
    """Keep `group` and, in C++, the tensors of each operation until all of them are over.

    gloo cannot abort an operation: its thread lets go of the tensors at the deadline. Were it the last (torch
    2.11), it would ask for the interpreter, and a process that ends just then is aborted (SIGABRT). A group
    waits for its operations when it is destroyed, in whatever thread that happens.
    """
    from fastsft import _C

    if flying:
        tensors = [tensor for several in flying.values() for tensor in several]
        with _holding:
            _held.append(_Held(list(flying), _C.HeldTensors(tensors), group))


def let_go() -> None:
    """Of what is over by now."""
    if not _held:
        return
    with _holding:
        over = {id(each) for each in _held if all(map(_is_over, each.works))}
        leaving = [each for each in _held if id(each) in over]
        _held[:] = [each for each in _held if id(each) not in over]
    del leaving  # not under the lock: a group's end takes its time


def _is_over(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # a device that has failed finishes nothing any more
        return True
