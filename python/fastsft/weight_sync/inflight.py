"""Keeps tensors of timed-out operations alive until their backend releases them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_SLACK_S = 10.0


class _Held(NamedTuple):
    works: list[Any]
    tensors: Any  # _C.HeldTensors
    group: Any
    until: float  # of time.monotonic()


_held: list[_Held] = []
# One reference that nobody gives back: what is under way when the process ends is held to its very end.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))
_holding = threading.Lock()


def hold(group: Any, flying: Sequence[tuple[Any, Sequence[torch.Tensor]]], deadline_s: float) -> None:
    """Keep `group` and, in C++, the tensors of each (operation, tensors) until all of them are over.

    gloo cannot abort an operation: its thread lets go of the tensors at the deadline. Were it the last (torch
    2.11), it would ask for the interpreter, and a process that ends just then is aborted (SIGABRT). A group
    waits for its operations when it is destroyed, in whatever thread that happens. deadline_s: of the
    operations; they are held no longer than that and some seconds, whatever they say.
    """
    from fastsft import _C

    if not flying:
        return
    tensors = _C.HeldTensors([tensor for _, several in flying for tensor in several])
    entry = _Held([work for work, _ in flying], tensors, group, time.monotonic() + deadline_s + _SLACK_S)
    with _holding:
        _held.append(entry)
    timer = threading.Timer(deadline_s + _SLACK_S + 1.0, let_go)
    timer.daemon = True
    timer.start()


def let_go() -> None:
    """Of what is over by now."""
    if not _held:
        return
    with _holding:
        over = {id(each) for each in _held if _is_over(each)}
        leaving = [each for each in _held if id(each) in over]
        _held[:] = [each for each in _held if id(each) not in over]
    del leaving  # not under the lock: a group's end takes its time


def _is_over(held: _Held) -> bool:
    return time.monotonic() > held.until or all(map(_is_done, held.works))


def _is_done(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # what cannot be asked, or is of a device that has failed
        return True
