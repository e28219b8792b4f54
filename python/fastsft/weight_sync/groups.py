"""Groups in which rank 0 sends weights, over gloo or NCCL."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from fastsft import _C
from fastsft.ranks.exchange import seconds
from fastsft.weight_sync.interfaces import Group, Work
from fastsft.weight_sync.rendezvous import Rendezvous

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_HELD_SLACK_S = 10.0


class _Held(NamedTuple):
    works: list[Work]
    tensors: _C.HeldTensors
    group: Group
    until: float  # of time.monotonic()


_held: list[_Held] = []
# One reference is never given back: operations under way when the process ends are held to its very end.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))
_holding = threading.Lock()


def keep_until_done(
    group: Group, flying: Sequence[tuple[Work, Sequence[torch.Tensor]]], deadline_s: float
) -> None:
    """Keep `group` and, in C++, the tensors of each (operation, tensors) until all of them are over.

    gloo cannot abort an operation: its thread lets go of the tensors at the deadline. Were it the last (torch
    2.11), it would ask for the interpreter, and a process that ends just then is aborted (SIGABRT). A group
    waits for its operations when it is destroyed, in whatever thread that happens. deadline_s: of the
    operations; they are held no longer than that and some seconds, whatever they say.
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
    """Release the operations that are over by now."""
    if not _held:
        return
    with _holding:
        over = {id(entry) for entry in _held if _is_over(entry)}
        leaving = [entry for entry in _held if id(entry) in over]
        _held[:] = [entry for entry in _held if id(entry) not in over]
    del leaving  # not under the lock: a group's end takes its time


def _is_over(held: _Held) -> bool:
    return time.monotonic() > held.until or all(map(_is_done, held.works))


def _is_done(work: Work) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # what cannot be asked, or is of a device that has failed
        return True


_BACKENDS = ("gloo", "nccl")
_THREADS_OF_A_GROUP = 4  # torch 2.11 ends the process where gloo is denied one


class WeightGroup:
    """A process group for weights alone, over any store; made again by `rebuild` after a failure.

    store: a `torch.distributed` store that all members reach, and that outlives them. rank 0 sends. backend:
    "gloo" or "nccl". timeout_s: how long the others are waited for, and the deadline of operations that have
    none. Collective over the members. A member that was started again makes its group as before, while all
    others call `rebuild`. generation: a number, the same on all members, that grows with each rebuild.
    version: the newest that has gone through the group, or that a member had when it was made.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, *, backend: str = "gloo", timeout_s: float = 600.0
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r}")
        if world_size < 1:
            raise ValueError(f"world_size: expected 1 or more, got {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: expected 0 to {world_size - 1} in a group of {world_size}, got {rank}")
        self._store, self._rank, self._world_size = store, rank, world_size
        self._backend, self._timeout = backend, timedelta(seconds=seconds("timeout_s", timeout_s))
        self.generation, self.version = -1, 0
        self.group = self._meet()

    def rebuild(self, store: Store | None = None) -> None:
        """Make a new group of all members that call this, or were started again, within the timeout.

        store: in place of the one before, when that has ended with its process. RuntimeError when a member
        has not come: then the group is of no use, and a later call may succeed.
        """
        abort(self.group)
        self._store = self._store if store is None else store
        self.group = self._meet()

    def _meet(self) -> Group:
        release_done()
        dist: Any = importlib.import_module("torch.distributed")
        if self._backend == "gloo":
            _C.require_threads(_THREADS_OF_A_GROUP, "a group for weights")
        meeting = Rendezvous(
            dist.PrefixStore("weights", self._store),
            self._rank,
            self._world_size,
            self._backend,
            self._timeout.total_seconds(),
            abort,
        ).meet(
            functools.partial(self._connect, dist),
            self.generation,
            self.version,
            # NCCL asks the store when it first sends, and belongs to this thread's device.
            in_caller=self._backend == "nccl",
        )
        self.generation, self.version = meeting.generation, meeting.version
        return meeting.group

    def _connect(self, dist: Any, store: Store, limit_s: float) -> Group:
        """Connect to all members within `limit_s`; operations have the group's own timeout."""
        limit = timedelta(seconds=limit_s)
        if self._backend == "gloo":
            group = dist.ProcessGroupGloo(store, self._rank, self._world_size, limit)
            group._set_default_timeout(self._timeout)
            return cast(Group, group)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return cast(Group, dist.ProcessGroupNCCL(store, self._rank, self._world_size, options))


# Groups in which an operation failed, or that somebody gave up.
_BROKEN: weakref.WeakSet[Group] = weakref.WeakSet()


def abort(group: Group) -> None:
    """End the group: no operation of it succeeds, here or elsewhere."""
    _BROKEN.add(group)
    with contextlib.suppress(Exception):  # a group that cannot be aborted ends with its last reference
        group.abort()


def is_broken(group: Group) -> bool:
    """True if `abort` was called with it."""
    return group in _BROKEN
