"""Groups in which rank 0 sends weights: over gloo, NCCL, or the shared memory of one host."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, cast

import torch

from fastsft import _C
from fastsft.ranks.exchange import seconds
from fastsft.weight_sync.interfaces import Group, Work
from fastsft.weight_sync.rendezvous import Rendezvous

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

P = ParamSpec("P")
_HELD_SLACK_S = 10.0


class _Held(NamedTuple):
    works: list[Work]
    tensors: _C.HeldTensors
    group: Group
    until: float  # of time.monotonic()


_held: list[_Held] = []
# One reference that nobody gives back: what is under way when the process ends is held to its very end.
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


def _is_done(work: Work) -> bool:
    try:
        return bool(work.is_completed())
    except Exception:  # what cannot be asked, or is of a device that has failed
        return True


SLOT_BYTES = 1 << 24  # two of them; containers often have 64 MiB


class SharedMemoryGroup:
    """The calls of a process group that a transport makes, for tensors on the CPU; rank 0 sends.

    Operations are done in order on a thread of the group's own. Collective over the members. RuntimeError
    when not all of them came within `limit`, or live on another host. timeout: of an operation that has none
    of its own.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout: timedelta, limit: timedelta
    ) -> None:
        self._rank, self._world_size, self._timeout = rank, world_size, timeout
        if rank == 0:
            name = f"fastsft-{secrets.token_hex(8)}"
            self._memory = _C.SharedMemory(name, rank, world_size, SLOT_BYTES)
            store.set("shared_memory", name)
        else:
            store.wait(["shared_memory"], limit)
            name = store.get("shared_memory").decode()
            self._memory = _C.SharedMemory(name, rank, world_size, SLOT_BYTES)
        self._memory.meet(limit.total_seconds())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shared-memory")

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world_size

    def name(self) -> str:
        return "shared_memory"

    def broadcast(self, tensors: list[torch.Tensor], options: object) -> SharedMemoryWork:
        """Rank 0's bytes in the contiguous tensor of all. options: torch's, of which `timeout` counts."""
        (tensor,) = tensors
        return self._do(self._memory.broadcast, tensor, self._seconds(options))

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: object
    ) -> SharedMemoryWork:
        """Everybody's message, of at most 4096 bytes, in order of rank."""
        (notes,), (mine,) = outputs, inputs
        return self._do(self._gather, notes, mine, self._seconds(options))

    def abort(self) -> None:
        """No operation of any member succeeds from now on."""
        self._memory.abort()

    def _gather(self, notes: list[torch.Tensor], mine: torch.Tensor, deadline_s: float) -> None:

        everything = torch.empty(self._world_size, mine.numel(), dtype=mine.dtype)
        self._memory.all_gather(mine, everything, deadline_s)
        for note, found in zip(notes, everything, strict=True):
            note.copy_(found)

    def _do(self, operation: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> SharedMemoryWork:
        return SharedMemoryWork(self._thread.submit(operation, *args, **kwargs))

    def _seconds(self, options: object) -> float:
        given: timedelta | None = getattr(options, "timeout", None)
        chosen = given if given is not None and given > timedelta(0) else self._timeout
        return chosen.total_seconds()


class SharedMemoryWork:
    """An operation under way."""

    def __init__(self, done: Future[None]) -> None:
        self._done = done

    def is_completed(self) -> bool:
        """Done or failed."""
        return self._done.done()

    def wait(self, timeout: timedelta) -> None:
        """RuntimeError when it failed, or is not done within `timeout`."""
        try:
            self._done.result(timeout.total_seconds())
        except TimeoutError as error:
            raise RuntimeError("the operation is not done in time") from error


_BACKENDS = ("gloo", "nccl", "shared_memory")
_THREADS_OF_A_GROUP = 4  # torch 2.11 ends the process where gloo is denied one


class WeightGroup:
    """A process group for weights alone, over any store; made again by `rebuild` after a failure.

    store: a `torch.distributed` store that all members reach, and that outlives them. rank 0 sends. backend:
    "gloo", "nccl", or "shared_memory" for processes of one host and tensors on its CPU. timeout_s: how long
    the others are waited for, and of an operation for which nobody set a deadline. Collective over the
    members. A member that was started again makes its group as it did before, while all others call
    `rebuild`. generation: of the members that are in it now, the same number on all. version: the newest that
    has gone through the group, or that a member had when it was made.
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
        """A new group, with every member that calls this, or that was started again, within the timeout.

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
        """limit_s: until all are connected; of the operations it is the group's own timeout."""
        limit = timedelta(seconds=limit_s)
        if self._backend == "shared_memory":
            return SharedMemoryGroup(store, self._rank, self._world_size, self._timeout, limit)
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
