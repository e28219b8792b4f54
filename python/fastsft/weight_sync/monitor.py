"""CheckpointMonitor: counts each step's saves and publishes complete steps, with Trinity's interface."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.weight_sync import layout

if TYPE_CHECKING:
    from ray.actor import ActorHandle

STRATEGIES = ("single_thread", "single_process", "single_node", "unrestricted")
KEPT_FAILURES = 1000
_LONGEST_WAIT = 1.0  # longest time between checks for expired leases [seconds]
_LOGGER = logging.getLogger(__name__)


class Writers:
    """Admits writers so that, at any time, all active writers have the same identity.

    strategy: one of STRATEGIES; it defines a writer's identity. deadline_s: seconds that `enter` waits
    for other writers.
    """

    def __init__(self, strategy: object, deadline_s: float = 3600.0) -> None:
        name = str(getattr(strategy, "value", strategy)).lower()
        if name not in STRATEGIES:
            raise ValueError(f"save_strategy: expected one of {', '.join(STRATEGIES)}, got {strategy}")
        self._strategy, self._deadline_s = name, deadline_s
        self._condition = threading.Condition()
        self._current = ""
        self._leases: list[tuple[str, str, float]] = []  # node, job, expiry time
        self._number = itertools.count()

    def enter(self, node_id: str, job_id: str, lease_s: float | None) -> None:
        """Wait until this writer may write.

        RuntimeError if other writers write for longer than the deadline.
        """
        identities = {"single_node": node_id, "single_process": f"{node_id}_{job_id}"}
        identity = identities.get(self._strategy, str(next(self._number)))
        give_up = time.monotonic() + self._deadline_s
        with self._condition:
            while self._strategy != "unrestricted" and self._active() and identity != self._current:
                if time.monotonic() > give_up:
                    raise RuntimeError(
                        f"{self._strategy}: others have been writing for {self._deadline_s:g} seconds: "
                        f"{', '.join(f'{job} on {node}' for node, job, _ in self._leases)}"
                    )
                self._condition.wait(min(_LONGEST_WAIT, self._deadline_s))
            self._current = identity
            end = float("inf") if lease_s is None else time.monotonic() + lease_s
            self._leases.append((node_id, job_id, end))

    def renew(self, node_id: str, job_id: str, lease_s: float) -> None:
        end = time.monotonic() + lease_s
        with self._condition:
            self._leases = [
                (node, job, max(end, before) if (node, job) == (node_id, job_id) else before)
                for node, job, before in self._leases
            ]

    def leave(self, node_id: str | None, job_id: str | None) -> None:
        """End a lease of the writer. Without ids, as in Trinity's calls, end the oldest lease."""
        with self._condition:
            mine = [entry for entry in self._leases if node_id is None or entry[:2] == (node_id, job_id)]
            if mine:
                self._leases.remove(mine[0])
            self._condition.notify_all()

    def _active(self) -> bool:
        now = time.monotonic()
        self._leases = [entry for entry in self._leases if entry[2] > now]
        return bool(self._leases)


@dataclass
class StepSaves:
    """One step's saves. In the keys, True stands for saves of weights, and False for full checkpoints.

    pending: registered saves minus ended saves; negative if saves ended before their registration.
    announced: the kinds of saves for which no further saves will be registered.
    failure: the last failed save's error.
    """

    pending: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    announced: set[bool] = field(default_factory=set)
    weights_finished: bool = False
    failure: str | None = None

    @property
    def even(self) -> bool:
        """True if all registered saves have ended, and all ended saves were registered."""
        return not any(self.pending.values())


class CheckpointMonitor:
    """Counts each step's saves, and writes the iteration files. Thread-safe; may be a Ray actor.

    A step is published when all registered saves have finished, none has failed, and `monitor_step` has
    announced the step. For a full checkpoint, the checkpoints' iteration file is written first.
    save_strategy: decides which writers may write at the same time: "single_thread", "single_process",
    "single_node" or "unrestricted".
    default_local_dir: the job's directory. Its iteration files and manifests give the initial state.
    deadline_s: seconds after which a writer that waits for other writers gets a RuntimeError.
    """

    def __init__(
        self,
        save_strategy: object = "unrestricted",
        default_local_dir: str = ".",
        default_hdfs_dir: str | None = None,
        deadline_s: float = 3600.0,
    ) -> None:
        if default_hdfs_dir is not None:
            raise ValueError(
                f"default_hdfs_dir: expected None, got {default_hdfs_dir}; copy complete steps yourself"
            )
        self._job = Path(default_local_dir)
        self._job.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._writers = Writers(save_strategy, deadline_s)
        self._saves: dict[int, StepSaves] = {}
        self._readers: dict[tuple[str, int], float] = {}
        self.latest_checkpoint_step, self.latest_state_dict_step = layout.published_steps(self._job)

    def register_thread_count(
        self, step: int, *, state_dict_thread_count: int = 0, checkpoint_thread_count: int = 0
    ) -> None:
        """Register the step's saves that have been started, and may already have finished."""
        with self._lock:
            saves = self._changing(step)
            saves.pending[True] += state_dict_thread_count
            saves.pending[False] += checkpoint_thread_count
            self._forget_past()

    def monitor_step(self, step: int, is_state_dict: bool = False) -> None:
        """Announce that no further saves will be registered."""
        with self._lock:
            self._of(step).announced.add(is_state_dict)
            self._publish(step)

    def notify_started(self, node_id: str, job_id: str, lease_s: float | None = None) -> None:
        """Wait until this writer may write. RuntimeError if other writers write for too long.

        lease_s: seconds within which the writer must send a `heartbeat`; None if it need not send any.
        """
        self._writers.enter(str(node_id), str(job_id), lease_s)

    def heartbeat(self, node_id: str, job_id: str, lease_s: float) -> None:
        """Renew a living writer's lease."""
        self._writers.renew(str(node_id), str(job_id), lease_s)

    def notify_finished(
        self, step: int, is_state_dict: bool = False, *, node_id: str | None = None, job_id: str | None = None
    ) -> None:
        """Count a durable save for the step.

        node_id, job_id: the writer's ids; given by writers that have a lease.
        """
        self._writers.leave(node_id, job_id)
        with self._lock:
            saves = self._changing(step)
            saves.pending[is_state_dict] -= 1
            saves.weights_finished |= is_state_dict
            self._publish(step)

    def notify_failed(
        self,
        step: int,
        why: str,
        is_state_dict: bool = False,
        *,
        node_id: str | None = None,
        job_id: str | None = None,
    ) -> None:
        """Count a failed save for the step. The step is then not published until it is saved again."""
        self._writers.leave(node_id, job_id)
        _LOGGER.error("saving step %d failed: %s", step, why)
        with self._lock:
            saves = self._of(step)
            saves.pending[is_state_dict] -= 1
            saves.failure = why
            if step in self.latest_steps():
                # The step was being saved again, and may be half replaced. A published step must be complete.
                self.latest_checkpoint_step, self.latest_state_dict_step = layout.published_steps(self._job)
            self._forget_past()

    def failures(self) -> dict[int, str]:
        """Return each failed step's last error, for the newest 1000 failed steps."""
        with self._lock:
            return {step: saves.failure for step, saves in self._saves.items() if saves.failure is not None}

    def latest_steps(self) -> tuple[int, int]:
        """Return the published steps (full checkpoint, weights); 0 if there is none."""
        with self._lock:
            return self.latest_checkpoint_step, self.latest_state_dict_step

    def acquire_lease(self, step: int, reader: str, seconds: float = 600.0) -> None:
        """Protect the step from `prune` for `seconds`. A second call renews the lease.

        reader: the reader's name. ValueError if the step is missing or incomplete.
        """
        with self._lock:
            directory = self._job / f"global_step_{step}"
            if not directory.is_dir() or not layout.is_complete(directory):
                raise ValueError(f"{directory}: expected a complete step to read; take a published one")
            self._leased()[reader, step] = time.monotonic() + seconds

    def release_lease(self, step: int, reader: str) -> None:
        """End the reader's lease on the step, if there is one."""
        with self._lock:
            self._readers.pop((reader, step), None)

    def prune(self, keep: int) -> list[int]:
        """Remove old steps that were saved only for weight sync, and return their numbers.

        These steps stay: the newest `keep` complete steps, steps above the newest complete step, steps that a
        reader has leased, and full checkpoints.
        """
        with self._lock:
            return layout.prune(self._job, keep, {step for _, step in self._leased()})

    def _leased(self) -> dict[tuple[str, int], float]:
        """Return each active lease's expiry time, and drop expired leases."""
        now = time.monotonic()
        self._readers = {lease: end for lease, end in self._readers.items() if end > now}
        return self._readers

    def _of(self, step: int) -> StepSaves:
        return self._saves.setdefault(step, StepSaves())

    def _changing(self, step: int) -> StepSaves:
        """Return the record for a step whose counts are about to change.

        If its counts are even, the change belongs to a new save for the step, so an old failure is forgotten.
        Otherwise, the change may belong to the failed save, because reports and registrations arrive in any
        order.
        """
        saves = self._of(step)
        if saves.even:
            saves.failure = None
        return saves

    def _forget_past(self) -> None:
        """Forget finished steps before the published step, and all except the newest failed steps.

        A later report about a forgotten step belongs to a new save, which is registered and announced again.
        """
        over = [(step, saves) for step, saves in self._saves.items() if saves.announced and saves.even]
        failed = sorted(step for step, saves in over if saves.failure is not None)
        gone = failed[: max(0, len(failed) - KEPT_FAILURES)]
        checkpoint, weights = self.latest_steps()
        for step, saves in over:
            newest = checkpoint if False in saves.announced else weights
            if saves.failure is None and step < weights and step <= newest:
                gone.append(step)
        for step in gone:
            del self._saves[step]

    def _publish(self, step: int) -> None:
        """Publish the step's weights and full checkpoint if complete, unless a newer step is published."""
        saves = self._of(step)
        if saves.failure is None and saves.pending[True] == 0:
            is_full = False in saves.announced
            full = is_full and saves.pending[False] == 0
            if full and step > self.latest_checkpoint_step:
                self.latest_checkpoint_step = step
                self._write(layout.CHECKPOINT_FILE, step)
            weights = full or (is_full and saves.weights_finished) or True in saves.announced
            newest = self.latest_state_dict_step
            if weights and step > newest:
                self.latest_state_dict_step = step
                self._write(layout.STATE_DICT_FILE, step)
            elif step < newest:
                _LOGGER.warning(
                    "%s: step %d is saved, and not published: step %d is", self._job, step, newest
                )
        self._forget_past()

    def _write(self, name: str, step: int) -> None:
        """Write an iteration file, unless another trainer's monitor has written a newer step."""
        named = layout.read_iteration(self._job / name)
        if named is not None and named > step and (self._job / f"global_step_{named}").is_dir():
            _LOGGER.warning("%s names step %d: step %d is not published", self._job / name, named, step)
            return
        layout.write_iteration(self._job / name, step)

    @classmethod
    def get_actor(
        cls,
        namespace: str,
        save_strategy: object = "unrestricted",
        default_local_dir: str = ".",
        default_hdfs_dir: str | None = None,
    ) -> ActorHandle:
        """Return the Ray actor `checkpoint_monitor`, after making it if there is none.

        The actor serves 64 calls at a time, so that writers may wait in their calls.
        """
        import ray

        options = {"name": "checkpoint_monitor", "namespace": namespace, "get_if_exists": True}
        actor = ray.remote(cls).options(**options, max_concurrency=64)
        return actor.remote(
            getattr(save_strategy, "value", save_strategy), default_local_dir, default_hdfs_dir
        )
