"""All ranks succeed or all ranks raise: the outcome of work that one rank does while the others wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastsft.launcher import gather_objects, launch

T = TypeVar("T")


class Agreement:
    """Collects this rank's failure until `settle`, where all ranks learn of it; `what` begins the message."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.rank, self.world_size = launch().rank, launch().world_size
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
        return self.attempt(work) if self.rank == 0 else None

    def settle(self, value: T) -> list[T]:
        """The value of every rank, in their order; collective.

        When a rank failed, every rank raises: the guilty one its own error, the others one with its words.
        """
        failure = self._failure
        note = None if failure is None else (isinstance(failure, ValueError), str(failure))
        reports = gather_objects((note, value))
        if failure is not None:
            raise failure
        for rank, (other, _) in enumerate(reports):
            if other is not None:
                kind = ValueError if other[0] else RuntimeError
                raise kind(f"{self.what}: rank {rank} failed: {other[1]}")
        return [reported for _, reported in reports]

    def settle_first(self, value: T | None) -> T:
        """Rank 0's value, on every rank; collective. Raises as `settle`."""
        first = self.settle(value)[0]
        assert first is not None, self.what
        return first
