"""Process groups over gloo or NCCL in which rank 0 sends weights, and transfers with deadlines."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch

from fastsft import _C
from fastsft.ranks.exchange import Message, seconds
from fastsft.weight_sync.held_operations import keep_until_done, release_done
from fastsft.weight_sync.interfaces import Group, Work
from fastsft.weight_sync.rendezvous import Rendezvous, plain_reason

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import BroadcastOptions

_BACKENDS = ("gloo", "nccl")
_THREADS_OF_A_GROUP = 4  # torch 2.11 ends the process if gloo cannot start a thread


class WeightGroup:
    """A process group that is used only for weights. After a failure, `rebuild` makes it again.

    The constructor is collective over the members; rank 0 sends.
    store: a `torch.distributed` store that all members reach, and that outlives them.
    backend: "gloo" or "nccl".
    timeout_s: seconds to wait for other members, and the default deadline for
    operations.
    generation: a number that grows with each rebuild, the same on all members.
    version: the newest version that was sent through the group, or that a member had when it joined.

    A restarted member constructs its group again, while all other members call `rebuild`.
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
        """Make the group again.

        Collective: all other members call this method, too, or the constructor if they were restarted.

        store: a new store, if the earlier store ended with its process; None for the earlier store.
        RuntimeError if a member does not join within the timeout. The group cannot be used then, but a later
        call may succeed.
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
            # NCCL uses the store in its first operation, and uses this thread's current device.
            in_caller=self._backend == "nccl",
        )
        self.generation, self.version = meeting.generation, meeting.version
        return meeting.group

    def _connect(self, dist: Any, store: Store, limit_s: float) -> Group:
        """Return a group that is connected to all members within `limit_s`.

        Its operations have the usual timeout.
        """
        limit = timedelta(seconds=limit_s)
        if self._backend == "gloo":
            group = dist.ProcessGroupGloo(store, self._rank, self._world_size, limit)
            group._set_default_timeout(self._timeout)
            return cast(Group, group)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return cast(Group, dist.ProcessGroupNCCL(store, self._rank, self._world_size, options))


# Groups for which `abort` was called.
_BROKEN: weakref.WeakSet[Group] = weakref.WeakSet()


def abort(group: Group) -> None:
    """End the group, so that its operations fail on all members."""
    _BROKEN.add(group)
    with contextlib.suppress(Exception):  # a group that cannot be aborted ends with its last reference
        group.abort()


def is_broken(group: Group) -> bool:
    """Return True if `abort` was called for `group`."""
    return group in _BROKEN


MESSAGE_BYTES = 2048
# torch's flight recorder (2.11) writes a gloo group's first operation to a map without a lock, which may
# cause a segmentation fault. Enqueuing does not wait, so this lock is held only briefly.
_ENQUEUING = threading.Lock()


class AgreedError(RuntimeError):
    """An error that all members know, so that all leave the transfer at the same point."""


class Transport:
    """The channel through which the modes send tensors and messages.

    deadline_s: limit for each single wait in seconds, after which the group is ended. device: for buffers and
    messages; "cpu" for gloo.
    """

    def __init__(self, group: object, deadline_s: float, device: torch.device | str = "cpu") -> None:
        self._owner = group if isinstance(group, WeightGroup) else None
        self.generation = 0 if self._owner is None else self._owner.generation
        self._group = cast(Group, getattr(group, "group", group))
        self.deadline_s, self.device = deadline_s, device
        # Operations get the same deadline, because gloo cannot abort them, and destroying a group waits for
        # them.
        self._deadline = timedelta(seconds=deadline_s)
        # Made once, because a sync may have thousands of tensors.
        self._options = _broadcast_options(self._deadline)
        self._as_bytes = _unknown_to_gloo() if str(device) == "cpu" else frozenset()
        # NCCL needs no lock: its first operation waits for other members, which may be threads in this
        # process.
        self._enqueuing: contextlib.AbstractContextManager[object] = (
            _ENQUEUING if str(device) == "cpu" else contextlib.nullcontext()
        )
        self._in_flight: dict[
            int, tuple[Work, Sequence[torch.Tensor]]
        ] = {}  # by id, as works may not be hashable
        release_done()
        if is_broken(self._group):
            raise RuntimeError(
                "this group failed in an earlier sync and may still hold half a transfer, or its rebuild did "
                "not succeed; call WeightGroup.rebuild() on every member"
            )

    @property
    def rank(self) -> int:
        return int(self._group.rank())

    @property
    def size(self) -> int:
        return int(self._group.size())

    @property
    def is_ours(self) -> bool:
        """True if the group is a `WeightGroup`, so that all members probably run fastsft."""
        return self._owner is not None

    @property
    def version(self) -> int:
        """The newest version that a member is known to have; 0 if no version is known."""
        return known_version(self._owner)

    def note_version(self, version: int) -> None:
        """Record a version that was sent through the group, for members that join later."""
        if self._owner is not None:
            self._owner.version = max(self._owner.version, version)

    def broadcast(self, tensor: torch.Tensor) -> Work:
        """Enqueue a contiguous tensor's broadcast from rank 0, and return the operation for `wait`."""
        if tensor.dtype in self._as_bytes:
            tensor = _bytes_of(tensor)
        try:
            with self._enqueuing:
                work = self._group.broadcast([tensor], self._options)
        except RuntimeError as error:
            raise self._failed("a broadcast", error) from error
        self._in_flight[id(work)] = work, (tensor,)
        return work

    def wait(self, work: Work, what: str) -> None:
        """Wait for an operation. RuntimeError if it fails or exceeds the deadline.

        what: the operation's name, for the message.
        """
        try:
            work.wait(self._deadline)
        except RuntimeError as error:
            raise self._failed(what, error) from error
        self._in_flight.pop(id(work), None)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """End the group if the handshake or transfer in this context raises any error except AgreedError.

        Otherwise, other members would take the next transfer for the rest of this transfer.
        """
        try:
            yield
        except AgreedError:
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the group on all members, and keep the operations in flight until they end."""
        try:
            keep_until_done(self._group, list(self._in_flight.values()), self.deadline_s)
        finally:
            self._in_flight = {}
            abort(self._group)

    def announce(self, content: Message) -> Message:
        """Return rank 0's `content` on every rank. Collective."""
        message = _encode(content) if self.rank == 0 else torch.empty(MESSAGE_BYTES, dtype=torch.uint8)
        message = message.to(self.device)
        self.wait(self.broadcast(message), "the announcement of a sync")
        return _decode(message)

    def vote(self, content: Message, what: str) -> list[Message]:
        """Return all members' `content`, in rank order. Collective.

        AgreedError on all members if one content has the key `error`.
        """
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        options = c10d.AllgatherOptions()
        options.timeout = self._deadline
        mine = _encode(content).to(self.device)
        notes = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            with self._enqueuing:
                work = self._group.allgather([notes], [mine], options)
        except RuntimeError as error:
            raise self._failed(f"the vote on {what}", error) from error
        self._in_flight[id(work)] = work, (mine, *notes)
        self.wait(work, f"the vote on {what}")
        contents = [_decode(note) for note in notes]
        for rank, note in enumerate(contents):
            if "error" in note:
                who = "the sender" if rank == 0 else f"receiver {rank}"
                raise AgreedError(f"{what}: {who}: {note['error']}")
        return contents

    def _failed(self, what: str, error: RuntimeError) -> RuntimeError:
        """End the group, and return the error to raise."""
        self.end()
        return RuntimeError(
            f"weight sync: {what} failed or took more than {self.deadline_s:g} seconds: {plain_reason(error)}"
        )


def known_version(group: object) -> int:
    """Return the newest version that a `WeightGroup` knows; 0 for other groups."""
    return group.version if isinstance(group, WeightGroup) else 0


def _broadcast_options(deadline: timedelta) -> BroadcastOptions:
    import torch.distributed as dist

    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.asyncOp = True
    options.timeout = deadline
    return options


@functools.cache
def _unknown_to_gloo() -> frozenset[torch.dtype]:
    """Return the dtypes that gloo rejects ("Invalid scalar type", torch 2.11). They are sent as bytes."""

    return frozenset({
        torch.int16, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu,
    })  # fmt: skip


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:

    return tensor.view(-1).view(torch.uint8)


def _encode(content: Message) -> torch.Tensor:

    data = json.dumps(content).encode()
    # Repeated, because JSON escapes make the text longer.
    while "error" in content and len(data) > MESSAGE_BYTES:
        content = {**content, "error": content["error"][: len(content["error"]) * 3 // 4]}
        data = json.dumps(content).encode()
    assert len(data) <= MESSAGE_BYTES, data
    # The clone is needed because a gloo thread may release the memory last, and must not own a Python object.
    return torch.frombuffer(bytearray(data.ljust(MESSAGE_BYTES)), dtype=torch.uint8).clone()


def _decode(message: torch.Tensor) -> Message:
    content: Message = json.loads(bytes(message.cpu().numpy()).decode())
    return content
