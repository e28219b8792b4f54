"""The saves of one engine that have not ended: at most one running and one queued."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field

from fastsft.weight_sync.errors import ReplacedError
from fastsft.weight_sync.save_job import SaveJob
from fastsft.weight_sync.staging import Staging


class SaveRun:
    """A job that a coordinator calls once on a thread, or abandons: either way `done` gets an outcome.

    after: a save that must end first on rank 0, which may replace this one until then. The others wait for
    rank 0's word in any case.
    """

    def __init__(self, job: SaveJob, deadline_s: float, after: Future[None] | None) -> None:
        self.done: Future[None] = Future()
        self._job, self._deadline_s, self._after = job, deadline_s, after
        self._lock, self._began = threading.Lock(), False

    def __call__(self) -> None:
        if self._job.leads and self._after is not None:
            wait_for([self._after, self.done], self._deadline_s, FIRST_COMPLETED)
        with self._lock:
            if self.done.done():
                self.done.result()  # raises: it was replaced
            self._began = True
        try:
            self._job.run()
        except BaseException as error:
            self.done.set_exception(error)
            raise
        self.done.set_result(None)

    def abandon(self, error: BaseException) -> None:
        """In place of a call, or before it: a later one raises `error`. Nothing, when it has begun."""
        with self._lock:
            if self._began or self.done.done():
                return
            self.done.set_exception(error)
        self._job.abandon(f"{type(error).__name__}: {error}")

    def replace(self, step: int) -> bool:
        """Take it back for a save of `step`, unless it has begun. Rank 0 decides, and the others hear of it
        here: True on all ranks or on none."""
        if not self._job.leads:
            return self._job.was_replaced(self._deadline_s)
        with self._lock:
            if not self._began and not self.done.done():
                self.done.set_exception(self._job.replace(step))
        return isinstance(self.done.exception(0) if self.done.done() else None, ReplacedError)


@dataclass
class Slot:
    """Host buffers, and the save that reads them. name: under which a coordinator runs it."""

    name: str
    staging: Staging = field(default_factory=Staging)
    run: SaveRun | None = None

    def busy(self) -> bool:
        return self.run is not None and not self.run.done.done()

    def finish(self, deadline_s: float) -> BaseException | None:
        """Wait for its save; why that failed, if it did. One that does not end keeps its buffers, and blocks
        no later save."""
        try:
            failure = None if self.run is None else self.run.done.exception(deadline_s)
        except TimeoutError:
            self.run, self.staging = None, Staging()
            return RuntimeError(
                f"the save before this one has not ended for {deadline_s:g} seconds: its thread never ran, "
                "or its disk is stuck"
            )
        self.run = None  # not before: an interrupt in the wait must leave its buffers alone
        return None if isinstance(failure, ReplacedError) else failure


class SaveQueue:
    """Two slots, of which the second is used by saves that do not wait only."""

    def __init__(self) -> None:
        self._slots = [Slot("model_state_dict"), Slot("model_state_dict_next")]  # the older one first

    def free(self, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """A slot when no save is in flight any more; why an earlier one failed."""
        failures = [slot.finish(deadline_s) for slot in self._slots]
        return self._slots[0], next((failure for failure in failures if failure is not None), None)

    def replacing(self, step: int, deadline_s: float) -> tuple[Slot, BaseException | None]:
        """A slot at once where the save that waits can be replaced, or none does."""
        older, newer = self._slots
        if older.busy() and newer.busy():
            assert newer.run is not None
            reused = newer if newer.run.replace(step) else older
        else:
            reused = newer if older.busy() else older
        failure = reused.finish(deadline_s)
        self._slots = [slot for slot in self._slots if slot is not reused] + [reused]
        return reused, failure

    def other(self, slot: Slot) -> Future[None] | None:
        """The end of the other save, for one in `slot` to wait for."""
        (other,) = (each for each in self._slots if each is not slot)
        return other.run.done if other.run is not None and other.busy() else None
