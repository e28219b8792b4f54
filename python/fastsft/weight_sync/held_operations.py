"""Keeps operations that a transfer has given up, with their tensors, until they end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fastsft import _C
from fastsft.weight_sync.interfaces import Group, Work

_HELD_SLACK_S = 10.0


class _Held(NamedTuple):
    works: list[Work]
    tensors: _C.HeldTensors
    group: Group
    until: float  # a time of time.monotonic()


_held: list[_Held] = []
# This reference is never released, so that operations in flight at exit are kept until the process ends.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))
_holding = threading.Lock()


def keep_until_done(
    group: Group, flying: Sequence[tuple[Work, Sequence[torch.Tensor]]], deadline_s: float
) -> None:
    """Keep the group and its operations' tensors until all operations have ended.

    flying: pairs of an operation and its tensors, which are kept in C++. deadline_s: the operations' deadline
    in seconds. They are kept at most some seconds longer, even if they do not report their end.

    gloo cannot abort an operation: its thread releases the tensors at the deadline. If that released the last
    reference (torch 2.11), the thread would need the interpreter, and a process that exits at that moment
    would be aborted (SIGABRT). Also, destroying a group waits for its operations.
    """
    if not flying:
        return
    tensors = _C.HeldTensors([tensor for _, several in flying for tensor in several])
    entry = _Held([work for work, _ in flying], tensors, group, time.monotonic() + deadline_s + _HELD_SLACK_S)
    with _holding:
        _held.append(entry)
    timer = threading.Timer(deadline_s + _HELD_SLACK_S + 1.0, release_done)
    timer.daemon = True
    timer.start()


def release_done() -> None:
    """Release the kept operations that have ended."""
    if not _held:
        return
    with _holding:
        over = {id(entry) for entry in _held if _is_over(entry)}
        leaving = [entry for entry in _held if id(entry) in over]
        _held[:] = [entry for entry in _held if id(entry) not in over]
    del leaving  # outside the lock, because destroying a group may wait


def _is_over(held: _Held) -> bool:
    return time.monotonic() > held.until or all(map(_is_done, held.works))


def _is_done(work: Work) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # the operation cannot be queried, or its device has failed
        return True
