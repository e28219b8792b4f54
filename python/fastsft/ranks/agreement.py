"""All ranks succeed or all ranks raise: the outcome of work that one rank does while the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastsft.ranks.process_group import gather_objects, host_collective
from fastsft.runtime.launch import Launch, launch

T = TypeVar("T")


def on_any_rank(flag: bool) -> bool:
    """True if the flag is set on any rank, the same on all; collective, one small exchange."""
    if launch().world_size == 1:
        return flag
    import torch
    import torch.distributed as dist

    value = torch.tensor([int(flag)])
    with host_collective("exchange of a flag"):
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())


class Agreement:
    """Collects this rank's failure until `settle`, where all ranks learn of it; `what` begins the message.

    `place`: of this process among the ranks, where another launcher than ours made them.
    """

    def __init__(self, what: str, place: Launch | None = None) -> None:
        self.what = what
        self._place = launch() if place is None else place
        self.rank, self.world_size = self._place.rank, self._place.world_size
        self._failure: Exception | None = None

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of `work`; None when it, or something before it, failed."""
        if self._failure is not None:
            return None
        try:
            return work()
        except Exception as error:
            self._failure = error
            return None

    def attempt_on_first(self, work: Callable[[], T]) -> T | None:
        """`attempt` on rank 0; None elsewhere."""
        return self.attempt_if(self.rank == 0, work)

    def attempt_if(self, mine: bool, work: Callable[[], T]) -> T | None:
        """`attempt` on the ranks where the work is theirs; None elsewhere."""
        return self.attempt(work) if mine else None

    def settle(self, value: T) -> list[T]:
        """The value of every rank, in their order; collective.

        When a rank failed, every rank raises: the failing one its own error, the others one with its message.
        """
        from fastsft import _C

        failure = self._failure
        note = None if failure is None else (isinstance(failure, ValueError), str(failure))
        reports = gather_objects((note, value), self._place)
        if failure is not None:
            raise failure
        for rank, (other, _) in enumerate(reports):
            if other is not None:
                kind = ValueError if other[0] else _C.PeerFailedError
                raise kind(f"{self.what}: rank {rank} failed: {other[1]}")
        return [reported for _, reported in reports]

    def settle_first(self, value: T | None) -> T:
        """Rank 0's value, on every rank; collective. Raises as `settle`."""
        first = self.settle(value)[0]
        assert first is not None, self.what
        return first
