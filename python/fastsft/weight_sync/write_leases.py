"""Leases: writers that may write at the same time, and how long one is believed to be alive."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

STRATEGIES = ("single_thread", "single_process", "single_node", "unrestricted")
_LONGEST_WAIT = 1.0  # seconds between looks at leases that end


class Writers:
    """Admits writers of one identity at a time; which identity, the strategy says.

    deadline_s: how long `enter` waits for writers that have no lease, or renew it for ever.
    """

    def __init__(self, strategy: Any, deadline_s: float = 3600.0) -> None:
        name = str(getattr(strategy, "value", strategy)).lower()
        if name not in STRATEGIES:
            raise ValueError(f"save_strategy: expected one of {', '.join(STRATEGIES)}, got {strategy}")
        self._strategy, self._deadline_s = name, deadline_s
        self._condition = threading.Condition()
        self._current = ""
        self._leases: list[tuple[str, str, float]] = []  # node, job, when it ends
        self._number = itertools.count()

    def enter(self, node_id: str, job_id: str, lease_s: float | None) -> None:
        """RuntimeError when others write for longer than the deadline."""
        identity = self._identity(node_id, job_id)
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
        """One writer is done: the one named, or, for callers that do not say, the one that entered first."""
        with self._condition:
            mine = [entry for entry in self._leases if entry[:2] == (node_id, job_id)]
            gone = mine[:1] or ([] if node_id is not None else self._leases[:1])
            for entry in gone:
                self._leases.remove(entry)
            self._condition.notify_all()

    def _active(self) -> bool:
        now = time.monotonic()
        self._leases = [entry for entry in self._leases if entry[2] > now]
        return bool(self._leases)

    def _identity(self, node_id: str, job_id: str) -> str:
        if self._strategy == "single_node":
            return node_id
        if self._strategy == "single_process":
            return f"{node_id}_{job_id}"
        return str(next(self._number))
