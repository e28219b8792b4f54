"""CheckpointCoordinator: saves in the background, with the calls of Trinity's coordinator."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

from fastsft.ranks.exchange import Message
from fastsft.weight_sync import remote
from fastsft.weight_sync.errors import ReplacedError, raise_once

_LOGGER = logging.getLogger(__name__)
_LEASE_PER_HEARTBEAT = 6.0
_ANSWER_S = 60.0  # for calls of the monitor that wait for nobody


class CheckpointCoordinator:
    """Runs saves on threads and tells a monitor before and after each.

    checkpoint_monitor: a `CheckpointMonitor`, Trinity's, or the handle of such a Ray actor; None: nobody is
    told. A failed save is kept: `wait_all` raises it, or the next save, which is under way nevertheless.
    heartbeat_s: seconds between signs of life to a monitor that takes them. deadline_s: how long a call waits
    for an earlier save to end, and a save for its turn to write.
    """

    def __init__(
        self, checkpoint_monitor: object = None, *, heartbeat_s: float = 5.0, deadline_s: float = 7200.0
    ) -> None:
        self._monitor = checkpoint_monitor
        self._heartbeat_s, self._deadline_s = heartbeat_s, deadline_s
        self._threads: dict[str, threading.Thread] = {}
        self._failures: list[BaseException] = []

    def save_async(
        self, name: str, save_fn: Callable[[], object], global_step: int, is_state_dict: bool = False
    ) -> None:
        """Run `save_fn` on a thread, after the earlier save of this name has ended.

        Where it will never be called, its method `abandon(error)` is, if it has one. RuntimeError when the
        earlier save has not ended within the deadline.
        """
        self._begin(name, lambda: self._save(save_fn, global_step, is_state_dict), save_fn)

    def save_sync(self, save_fn: Callable[[], object], global_step: int, is_state_dict: bool = False) -> None:
        """Run `save_fn` here, between the same calls of the monitor; raises what it raises."""
        self._save(save_fn, global_step, is_state_dict)
        self._raise_failure()

    def attach(self, name: str, work: Callable[[], object]) -> None:
        """`save_async` that tells no monitor: failure and end of `work` belong to this coordinator."""
        self._begin(name, work, work)

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait for every save. Raises the first failure that nobody has raised yet.

        timeout: seconds, None: the coordinator's deadline; RuntimeError when a save is still running then.
        """
        end = time.monotonic() + (self._deadline_s if timeout is None else timeout)
        for name in list(self._threads):
            self._join(name, end)
            self._threads.pop(name, None)
        self._raise_failure()

    async def register_and_monitor(
        self,
        global_step: int,
        is_state_dict: bool = False,
        state_dict_thread_count: int = 0,
        checkpoint_thread_count: int = 0,
    ) -> None:
        """Tell the monitor how many saves of the step there are, and that there will be no more."""
        if self._monitor is None:
            return
        if state_dict_thread_count or checkpoint_thread_count:
            await remote.call_async(
                self._monitor,
                "register_thread_count",
                global_step,
                deadline_s=_ANSWER_S,
                state_dict_thread_count=state_dict_thread_count,
                checkpoint_thread_count=checkpoint_thread_count,
            )
        await remote.call_async(
            self._monitor, "monitor_step", global_step, deadline_s=_ANSWER_S, is_state_dict=is_state_dict
        )

    def _begin(self, name: str, work: Callable[[], object], told: object) -> None:
        try:
            self._join(name, time.monotonic() + self._deadline_s)
            earlier = len(self._failures)  # a failure of the save that begins here belongs to the next call
            thread = threading.Thread(target=self._keep_failure, args=(name, work), name=f"save-{name}")
            thread.start()
        except BaseException as error:
            _abandon(told, error)
            raise
        self._threads[name] = thread
        self._raise_failure(earlier)

    def _join(self, name: str, end: float) -> None:
        thread = self._threads.get(name)
        if thread is None:
            return
        began = time.monotonic()
        thread.join(max(0.0, end - began))
        if thread.is_alive():
            raise RuntimeError(f"save {name} is still running after {max(0.0, end - began):.3g} seconds")

    def _keep_failure(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except ReplacedError as replaced:
            _LOGGER.info("%s", replaced)
        except BaseException as error:
            _LOGGER.exception("save %s failed", name)
            self._failures.append(error)
            _FAILED.add(self)

    def _raise_failure(self, count: int | None = None) -> None:
        """The first of the `count` oldest failures (default: of all) that nobody has raised yet."""
        for _ in range(len(self._failures) if count is None else count):
            failure = self._failures.pop(0)
            if not self._failures:
                _FAILED.discard(self)
            raise_once(failure)

    def _save(self, save_fn: Callable[[], object], step: int, is_state_dict: bool) -> None:
        if self._monitor is None:
            save_fn()
            return
        node_id, job_id = remote.runtime_ids()
        # An unmodified monitor knows neither leases nor failures, and its calls stay as they are.
        extended = remote.has_method(self._monitor, "notify_failed")
        who: Message = {"node_id": node_id, "job_id": job_id}
        lease: Message = {"lease_s": self._heartbeat_s * _LEASE_PER_HEARTBEAT} if extended else {}
        try:
            remote.call(self._monitor, "notify_started", deadline_s=self._deadline_s, **who, **lease)
        except BaseException as error:
            _abandon(save_fn, error)
            raise
        try:
            with _Heartbeat(self._monitor if extended else None, who, lease, self._heartbeat_s):
                save_fn()
        except BaseException as error:
            if extended:
                why = f"{type(error).__name__}: {error}"
                remote.call(
                    self._monitor, "notify_failed", step, why, is_state_dict, deadline_s=_ANSWER_S, **who
                )
            raise
        known = who if extended else {}
        remote.call(self._monitor, "notify_finished", step, is_state_dict, deadline_s=_ANSWER_S, **known)


class _Heartbeat:
    """Signs of life while a save runs."""

    def __init__(self, monitor: object, who: Message, lease: Message, every: float) -> None:
        self._monitor, self._who, self._lease, self._every = monitor, who, lease, every
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="save-heartbeat", daemon=True)

    def __enter__(self) -> None:
        if self._monitor is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._monitor is not None:
            self._thread.join(_ANSWER_S)  # none of them may be in Ray's code when the interpreter ends

    def _beat(self) -> None:
        while not self._done.wait(self._every):
            try:
                remote.call(self._monitor, "heartbeat", deadline_s=_ANSWER_S, **self._who, **self._lease)
            except Exception:
                _LOGGER.warning("the checkpoint monitor does not answer", exc_info=True)


def _abandon(work: object, error: BaseException) -> None:
    tell = getattr(work, "abandon", None)
    if tell is not None:
        tell(error)


def _say_what_failed() -> None:
    """The interpreter has joined the threads by now, so that no shard is left half written."""
    for coordinator in list(_FAILED):
        try:
            coordinator.wait_all()
        except Exception as error:
            _LOGGER.error("a save failed and nobody asked for its outcome: %s", error)


_FAILED: set[CheckpointCoordinator] = set()
atexit.register(_say_what_failed)
