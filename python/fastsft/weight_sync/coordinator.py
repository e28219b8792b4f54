"""CheckpointCoordinator: runs saves in the background, with Trinity's coordinator interface."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from fastsft.ranks.exchange import Message
from fastsft.weight_sync import remote
from fastsft.weight_sync.interfaces import ReplacedError, raise_once

_LOGGER = logging.getLogger(__name__)
_LEASE_PER_HEARTBEAT = 6.0
_ANSWER_S = 60.0  # limit for monitor calls that do not wait for other writers
Save = Callable[[], object]


class CheckpointCoordinator:
    """Runs saves on threads, and notifies a monitor before and after each save.

    checkpoint_monitor: a `CheckpointMonitor`, Trinity's monitor, or a Ray actor handle for either; None for
    no notifications.
    heartbeat_s: seconds between heartbeats to a monitor that supports them.
    deadline_s: seconds that a call waits for an earlier save to end, and that a save waits until it may
    write.

    A failed save's error is raised by `wait_all`, or by the next call that begins a save, after that
    save has begun.
    """

    def __init__(
        self, checkpoint_monitor: object = None, *, heartbeat_s: float = 5.0, deadline_s: float = 7200.0
    ) -> None:
        self._monitor = checkpoint_monitor
        self._heartbeat_s, self._deadline_s = heartbeat_s, deadline_s
        self._threads: dict[str, threading.Thread] = {}
        self._failures: list[BaseException] = []

    def save_async(self, name: str, save_fn: Save, global_step: int, is_state_dict: bool = False) -> None:
        """Call `save_fn` on a thread, after the earlier save with this `name` has ended.

        If `save_fn` can never be called, `save_fn.abandon(error)` is called instead, if it exists.
        RuntimeError if the earlier save does not end within the deadline.
        """
        self._begin(name, lambda: self._save(save_fn, global_step, is_state_dict), save_fn)

    def save_sync(self, save_fn: Save, global_step: int, is_state_dict: bool = False) -> None:
        """Call `save_fn` on this thread, with the same notifications. Raises `save_fn`'s error."""
        self._save(save_fn, global_step, is_state_dict)
        self._raise_failures(len(self._failures))

    def attach(self, name: str, work: Save) -> None:
        """Call `work` on a thread, as `save_async` does, but without notifying the monitor."""
        self._begin(name, work, work)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait for all saves. Raise the first error that has not been raised yet.

        timeout: seconds; None for the coordinator's deadline. RuntimeError if a save is still running after
        the timeout.
        """
        end = time.monotonic() + (self._deadline_s if timeout is None else timeout)
        for name in list(self._threads):
            self._join(name, end)
            self._threads.pop(name, None)
        self._raise_failures(len(self._failures))

    async def register_and_monitor(
        self,
        global_step: int,
        is_state_dict: bool = False,
        state_dict_thread_count: int = 0,
        checkpoint_thread_count: int = 0,
    ) -> None:
        """Tell the monitor how many saves the step has, and that no further save will follow."""
        counts = {
            "state_dict_thread_count": state_dict_thread_count,
            "checkpoint_thread_count": checkpoint_thread_count,
        }
        calls: list[tuple[str, Message]] = [("monitor_step", {"is_state_dict": is_state_dict})]
        if any(counts.values()):
            calls.insert(0, ("register_thread_count", counts))
        for name, given in calls if self._monitor is not None else ():
            await remote.call_async(self._monitor, name, global_step, deadline_s=_ANSWER_S, **given)

    def _begin(self, name: str, work: Save, save_fn: object) -> None:
        try:
            self._join(name, time.monotonic() + self._deadline_s)
            earlier = len(self._failures)  # an error of the save that begins here is raised by the next call
            thread = threading.Thread(target=self._keep_failure, args=(name, work), name=f"save-{name}")
            thread.start()
        except BaseException as error:
            _abandon(save_fn, error)
            raise
        self._threads[name] = thread
        self._raise_failures(earlier)

    def _join(self, name: str, end: float) -> None:
        patience = max(0.0, end - time.monotonic())
        if (thread := self._threads.get(name)) is not None:
            thread.join(patience)
            if thread.is_alive():
                raise RuntimeError(f"save {name} is still running after {patience:.3g} seconds")

    def _keep_failure(self, name: str, work: Save) -> None:
        try:
            work()
        except ReplacedError as replaced:
            _LOGGER.info("%s", replaced)
        except BaseException as error:
            _LOGGER.exception("save %s failed", name)
            self._failures.append(error)
            _FAILED.add(self)

    def _raise_failures(self, count: int) -> None:
        """Raise the first of the `count` oldest errors that has not been raised yet."""
        for _ in range(count):
            failure = self._failures.pop(0)
            if not self._failures:
                _FAILED.discard(self)
            raise_once(failure)

    def _save(self, save_fn: Save, step: int, is_state_dict: bool) -> None:
        monitor = self._monitor
        if monitor is None:
            save_fn()
            return
        node_id, job_id = remote.runtime_ids()
        # Trinity's own monitor supports neither leases nor notify_failed, and gets only Trinity's calls.
        extended = remote.has_method(monitor, "notify_failed")
        who: Message = {"node_id": node_id, "job_id": job_id}
        lease: Message = {"lease_s": self._heartbeat_s * _LEASE_PER_HEARTBEAT} if extended else {}
        try:
            remote.call(monitor, "notify_started", deadline_s=self._deadline_s, **who, **lease)
        except BaseException as error:
            _abandon(save_fn, error)
            raise
        if not extended:
            save_fn()
            remote.call(monitor, "notify_finished", step, is_state_dict, deadline_s=_ANSWER_S)
            return
        try:
            with _heartbeats(monitor, {**who, **lease}, self._heartbeat_s):
                save_fn()
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            remote.call(monitor, "notify_failed", step, why, is_state_dict, deadline_s=_ANSWER_S, **who)
            raise
        remote.call(monitor, "notify_finished", step, is_state_dict, deadline_s=_ANSWER_S, **who)


@contextlib.contextmanager
def _heartbeats(monitor: object, told: Message, every: float) -> Iterator[None]:
    """Send a heartbeat to the monitor every `every` seconds in this context."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every):
            try:
                remote.call(monitor, "heartbeat", deadline_s=_ANSWER_S, **told)
            except Exception:
                _LOGGER.warning("the checkpoint monitor does not answer", exc_info=True)

    thread = threading.Thread(target=beat, name="save-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_ANSWER_S)  # no thread may run Ray's code when the interpreter exits


def _abandon(save_fn: object, error: BaseException) -> None:
    if (tell := getattr(save_fn, "abandon", None)) is not None:
        tell(error)


def _say_what_failed() -> None:
    """Log, at exit, errors that were never raised. The interpreter has joined the threads by then."""
    for coordinator in list(_FAILED):
        try:
            coordinator.wait_all()
        except Exception as error:
            _LOGGER.error("a save failed and nobody asked for its outcome: %s", error)


_FAILED: set[CheckpointCoordinator] = set()
atexit.register(_say_what_failed)
