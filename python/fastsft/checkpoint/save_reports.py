"""Reports to rank 0 of what other ranks wrote while all of them train: through the store, not a group.

A thread next to the training must not take part in collectives, which belong to the thread that trains; the
store of the process group knows no order, and a rank that asks it blocks nobody.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from torch.distributed import DistError, DistNetworkError

from fastsft.model.model_save import FileReport, RangeReport
from fastsft.ranks.launcher_watch import launcher_is_gone
from fastsft.ranks.store import exchange_number, own_store
from fastsft.ranks.timed_store import SilentStoreError

_LONGEST_PAUSE = 0.1  # seconds between two looks at the store
_PULSE = 1.0  # seconds between two signs of life of a rank that writes
_SILENCE = 30.0  # seconds without one after which a rank counts as lost
# The store is gone or stuck, as torchrun's goes with torchrun: reports then travel with the training group.
STORE_ERRORS = (DistError, SilentStoreError)


@dataclass
class Report:
    """Outcome of one rank's part of a save. `user`: the failure is one that the user can fix."""

    files: list[FileReport] = field(default_factory=list)
    ranges: list[RangeReport] = field(default_factory=list)
    error: str | None = None
    user: bool = False

    def blame(self, error: Exception) -> None:
        """The part has failed."""
        self.error, self.user = str(error) or type(error).__name__, isinstance(error, ValueError)


class ReportBox:
    """The reports of one save. Made by every rank, in the same order of saves; not collective."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._name = f"fastsft/save/{exchange_number('save of a run')}"
        self._store = own_store() if world_size > 1 else None
        self._mine: Report | None = None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While entered, tell rank 0 that this rank lives, however long its part takes."""
        if self._rank == 0 or self._store is None:
            yield
            return
        with self._store.beating(self._pulse_of(self._rank), _PULSE):
            yield

    def _pulse_of(self, rank: int) -> str:
        return f"{self._name}/{rank}/pulse"

    def post(self, report: Report) -> None:
        """Hand over this rank's report."""
        self._mine = report
        self._check_store()
        if self._rank != 0 and self._store is not None:
            self._store.set(f"{self._name}/{self._rank}", json.dumps(asdict(report)))

    def _check_store(self) -> None:
        """A store that is known to be gone is not asked: torch would log a backtrace."""
        if self._store is not None and launcher_is_gone():
            raise DistNetworkError("the launcher is gone")

    def collect(self, deadline: Deadline) -> list[Report]:
        """On rank 0, after its own `post`: the reports of all ranks.

        RuntimeError after the deadline, or when a rank gives no sign of life for 30 s.
        """
        assert self._mine is not None
        return [self._mine, *(self._await(rank, deadline) for rank in range(1, self._world_size))]

    def _await(self, rank: int, deadline: Deadline) -> Report:
        name, pause = f"{self._name}/{rank}", 0.005
        assert self._store is not None
        pulse, silence = -1, Deadline()
        while not self._store.check([name]):
            self._check_store()
            heard = self._store.add(self._pulse_of(rank), 0)
            if heard != pulse:
                pulse = heard
                silence.set(_SILENCE)
            if deadline.passed() or silence.passed():
                raise RuntimeError(f"rank {rank} has not reported its part; it died or is stuck")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        report = Report(**json.loads(self._store.get(name)))
        self._store.delete_key(name)
        self._store.delete_key(self._pulse_of(rank))
        return report


class Deadline:
    """A deadline that can be set later."""

    def __init__(self) -> None:
        self._at: float | None = None

    def set(self, seconds: float) -> None:
        """Let it be `seconds` from now."""
        self._at = time.monotonic() + seconds

    def passed(self) -> bool:
        """True if it has been set and is over."""
        return self._at is not None and time.monotonic() > self._at
