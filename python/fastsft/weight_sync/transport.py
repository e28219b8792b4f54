"""A group in which rank 0 sends and the others receive: broadcasts and small messages, with deadlines."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fastsft.ranks.timed_store import BoundedStore, SilentStoreError
from fastsft.weight_sync.inflight import hold, let_go
from fastsft.weight_sync.shared_memory import SharedMemoryGroup

if TYPE_CHECKING:
    import torch

MESSAGE_BYTES = 2048
_BACKENDS = ("gloo", "nccl", "shared_memory")
_THREADS_OF_A_GROUP = 4  # torch 2.11 ends the process where gloo is denied one
_SLACK_S = 5.0  # a backend's own error comes first, which says more
# torch's flight recorder notes a gloo group's first operation in a map without a lock (2.11: a segmentation
# fault). Enqueuing never waits.
_ENQUEUING = threading.Lock()
_BROKEN: weakref.WeakSet[Any] = weakref.WeakSet()  # groups in which an operation failed


class AgreedError(RuntimeError):
    """A failure that every member has heard: all left the transfer at the same place."""


class WeightGroup:
    """A process group for weights alone, over any store; made again by `rebuild` after a failure.

    store: a `torch.distributed` store that all members reach. rank 0 sends. backend: "gloo", "nccl", or
    "shared_memory" for processes of one host and tensors on its CPU. timeout_s: of an operation for which
    nobody set a deadline. Collective over the members. ValueError for a rank that another member has.
    """

    def __init__(
        self, store: Any, rank: int, world_size: int, *, backend: str = "gloo", timeout_s: float = 600.0
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: expected 0 to {world_size - 1} in a group of {world_size}, got {rank}")
        self._store, self._rank, self._world_size = store, rank, world_size
        self._backend, self._timeout = backend, timedelta(seconds=timeout_s)
        self.generation = 0
        self.group = self._make()

    def rebuild(self) -> None:
        """A new group under the next generation number; every member calls it, as often as the others."""
        _abort(self.group)
        self.generation += 1
        self.group = self._make()

    def _make(self) -> Any:
        let_go()
        dist: Any = importlib.import_module("torch.distributed")
        if self._backend == "gloo":
            from fastsft import _C

            _C.require_threads(_THREADS_OF_A_GROUP, "a group for weights")
        store = dist.PrefixStore(f"weights/{self.generation}", self._store)
        calls = BoundedStore(lambda: store, self._timeout.total_seconds())
        try:
            calls.run(self._join)
            if (
                self._backend == "nccl"
            ):  # asks the store when it first sends, and belongs to this thread's device
                return self._connect(dist, store)
            return calls.run(lambda _: self._connect(dist, store), self._timeout.total_seconds() + _SLACK_S)
        except SilentStoreError as error:
            raise SilentStoreError(
                self._timeout.total_seconds(), f"joining generation {self.generation} of a group for weights"
            ) from error
        except RuntimeError as error:
            missing = calls.run(self._missing)
            if not missing:
                raise
            raise RuntimeError(
                f"rank {', '.join(map(str, missing))} has not joined generation {self.generation} of this "
                f"group within {self._timeout.total_seconds():g} seconds: {str(error).splitlines()[0]}"
            ) from error
        finally:
            calls.close()

    def _join(self, store: Any) -> None:
        ours = f"{self._world_size} members over {self._backend}"
        first = store.compare_set("group", "", ours).decode()
        if first != ours:
            raise ValueError(
                f"rank {self._rank} would make a group of {ours}; the first who joined generation "
                f"{self.generation} makes one of {first}: give world_size and backend alike to every member"
            )
        if store.add(f"joined/{self._rank}", 1) > 1:
            raise ValueError(
                f"rank {self._rank} has joined generation {self.generation} of this group before: two "
                "members have one rank, or this one was started again; make a group over another store, or "
                "rebuild it on every member"
            )

    def _missing(self, store: Any) -> list[int]:
        return [rank for rank in range(self._world_size) if not store.check([f"joined/{rank}"])]

    def _connect(self, dist: Any, store: Any) -> Any:
        if self._backend == "shared_memory":
            return SharedMemoryGroup(store, self._rank, self._world_size, self._timeout)
        if self._backend == "gloo":
            return dist.ProcessGroupGloo(store, self._rank, self._world_size, self._timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self._rank, self._world_size, options)


class Transport:
    """The channel of the modes. deadline_s: of every single wait; past it the group is of no use any more.

    device: where buffers and messages live; the CPU for gloo.
    """

    def __init__(self, group: Any, deadline_s: float, device: Any = "cpu") -> None:
        self.generation = getattr(group, "generation", 0)
        self._group = getattr(group, "group", group)
        self._deadline_s, self.device = deadline_s, device
        # Also of the operations themselves: gloo cannot abort one, and a group waits for its own to end.
        self._deadline = timedelta(seconds=deadline_s)
        self._options = _broadcast_options(self._deadline)  # once: a sync may be of thousands of tensors
        self._as_bytes = _unknown_to_gloo() if str(device) == "cpu" else frozenset()
        # NCCL's first operation waits for the other members, which may be threads of this process.
        self._enqueuing: Any = _ENQUEUING if str(device) == "cpu" else contextlib.nullcontext()
        self._flying: dict[int, tuple[Any, Sequence[torch.Tensor]]] = {}  # by id: works may not be hashable
        let_go()
        if self._group in _BROKEN:
            raise RuntimeError(
                "this group failed in an earlier sync and may still hold half a transfer; make a new one "
                "(WeightGroup.rebuild on every member)"
            )

    @property
    def rank(self) -> int:
        return int(self._group.rank())

    @property
    def size(self) -> int:
        return int(self._group.size())

    def broadcast(self, tensor: torch.Tensor) -> Any:
        """Enqueues the broadcast of a contiguous tensor from rank 0; for `wait`."""
        if tensor.dtype in self._as_bytes:
            tensor = _bytes_of(tensor)
        try:
            with self._enqueuing:
                work = self._group.broadcast([tensor], self._options)
        except RuntimeError as error:
            raise self._failed("a broadcast", error) from error
        self._flying[id(work)] = work, (tensor,)
        return work

    def wait(self, work: Any, what: str) -> None:
        """RuntimeError naming `what` when it is not done within the deadline."""
        try:
            work.wait(self._deadline)
        except RuntimeError as error:
            raise self._failed(what, error) from error
        self._flying.pop(id(work), None)

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """Around a whole handshake or transfer. Whoever leaves in the middle of it ends the group, unless all
        leave there: the others would take the next transfer for the rest of this one."""
        try:
            yield
        except AgreedError:
            raise
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """The group is of no use from now on, here or elsewhere."""
        _BROKEN.add(self._group)
        try:
            hold(self._group, list(self._flying.values()), self._deadline_s)
        finally:
            self._flying = {}
            _abort(self._group)

    def announce(self, content: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's content, on every rank."""
        import torch

        message = _encode(content) if self.rank == 0 else torch.empty(MESSAGE_BYTES, dtype=torch.uint8)
        message = message.to(self.device)
        self.wait(self.broadcast(message), "the announcement of a sync")
        return _decode(message)

    def vote(self, content: dict[str, Any], what: str) -> list[dict[str, Any]]:
        """Every member's content, in order of rank. AgreedError on all when one says `error`."""
        import torch

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
        self._flying[id(work)] = work, (mine, *notes)
        self.wait(work, f"the vote on {what}")
        found = [_decode(note) for note in notes]
        for rank, note in enumerate(found):
            if "error" in note:
                who = "the sender" if rank == 0 else f"receiver {rank}"
                raise AgreedError(f"{what}: {who}: {note['error']}")
        return found

    def _failed(self, what: str, error: RuntimeError) -> RuntimeError:
        """The error to raise; the group has come to its end."""
        self.end()
        return RuntimeError(
            f"weight sync: {what} failed or took more than {self._deadline_s:g} seconds: "
            f"{str(error).splitlines()[0]}"
        )


def _broadcast_options(deadline: timedelta) -> Any:
    import torch.distributed as dist

    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.asyncOp = True
    options.timeout = deadline
    return options


@functools.cache
def _unknown_to_gloo() -> frozenset[torch.dtype]:
    """It broadcasts no tensors of these dtypes ("Invalid scalar type", torch 2.11), but their bytes."""
    import torch

    return frozenset({
        torch.int16, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e8m0fnu,
    })  # fmt: skip


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view(-1).view(torch.uint8)


def _abort(group: Any) -> None:
    with contextlib.suppress(Exception):  # a group that cannot be aborted ends with its last reference
        group.abort()


def _encode(content: dict[str, Any]) -> torch.Tensor:
    import torch

    data = json.dumps(content).encode()
    while "error" in content and len(data) > MESSAGE_BYTES:  # whatever its characters escape to
        content = {**content, "error": content["error"][: len(content["error"]) * 3 // 4]}
        data = json.dumps(content).encode()
    assert len(data) <= MESSAGE_BYTES, data
    # The clone is no Python object's memory: a thread of gloo may be the last to let go of it.
    return torch.frombuffer(bytearray(data.ljust(MESSAGE_BYTES)), dtype=torch.uint8).clone()


def _decode(message: torch.Tensor) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(bytes(message.cpu().numpy()).decode())
    return content
