"""A group of processes of one host that hand weights on through shared memory, in place of gloo."""

from __future__ import annotations

import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SLOT_BYTES = 1 << 24  # two of them; containers often have 64 MiB


class SharedMemoryGroup:
    """The calls of a process group that a transport makes, for tensors on the CPU; rank 0 sends.

    Operations are done in order on a thread of the group's own. Collective over the members. RuntimeError
    when not all of them came within `timeout`, or live on another host.
    """

    def __init__(self, store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
        from fastsft import _C

        self._rank, self._world_size, self._timeout = rank, world_size, timeout
        if rank == 0:
            name = f"fastsft-{secrets.token_hex(8)}"
            self._memory = _C.SharedMemory(name, rank, world_size, SLOT_BYTES)
            store.set("shared_memory", name)
        else:
            store.wait(["shared_memory"], timeout)
            name = store.get("shared_memory").decode()
            self._memory = _C.SharedMemory(name, rank, world_size, SLOT_BYTES)
        self._memory.meet(timeout.total_seconds())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shared-memory")

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world_size

    def name(self) -> str:
        return "shared_memory"

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> SharedMemoryWork:
        """Rank 0's bytes in the contiguous tensor of all. options: torch's, of which `timeout` counts."""
        (tensor,) = tensors
        return self._do(self._memory.broadcast, tensor, self._seconds(options))

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
    ) -> SharedMemoryWork:
        """Everybody's message, of at most 4096 bytes, in order of rank."""
        (notes,), (mine,) = outputs, inputs
        return self._do(self._gather, notes, mine, self._seconds(options))

    def abort(self) -> None:
        """No operation of any member succeeds from now on."""
        self._memory.abort()

    def _gather(self, notes: list[torch.Tensor], mine: torch.Tensor, deadline_s: float) -> None:
        import torch

        everything = torch.empty(self._world_size, mine.numel(), dtype=mine.dtype)
        self._memory.all_gather(mine, everything, deadline_s)
        for note, found in zip(notes, everything, strict=True):
            note.copy_(found)

    def _do(self, operation: Any, *args: Any) -> SharedMemoryWork:
        return SharedMemoryWork(self._thread.submit(operation, *args))

    def _seconds(self, options: Any) -> float:
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
