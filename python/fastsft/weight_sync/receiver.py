"""WeightReceiver: the other end of fsdp_sync_weight_nccl, for rollout workers and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastsft.weight_sync import handshake
from fastsft.weight_sync.broadcast import DEFAULT_BUCKET_BYTES
from fastsft.weight_sync.modes import Load, SyncOptions, sync_mode
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.transport import Transport


class WeightReceiver:
    """Takes part in syncs as a rank above 0 of `group`, a process group or a `WeightGroup`.

    plan: a `SyncPlan`, or metadata as Trinity's Synchronizer gives it. load: called with lists of (name,
    tensor) as they arrive. mode, bucket_bytes and handshakes: the sender's. deadline_s: of every single wait.
    `dirty` is true from the first byte of a sync until its end: what was loaded may be a mixture of two
    versions, and must not serve before a sync has succeeded.
    """

    def __init__(
        self,
        group: Any,
        plan: SyncPlan | Sequence[tuple[str, Any, Sequence[int]]],
        load: Load,
        *,
        mode: str = "trinity",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        deadline_s: float = 600.0,
        handshakes: bool = False,
        checksum: bool = True,
        device: Any = "cpu",
    ) -> None:
        self._group, self._load = group, load
        self.plan = plan if isinstance(plan, SyncPlan) else SyncPlan(plan)
        self._mode, self._deadline_s, self._device = sync_mode(mode), deadline_s, device
        self._handshakes = handshakes or self._mode.handshakes
        self._bucket_bytes, self._checksum = bucket_bytes, checksum
        self.version, self.dirty = 0, False

    def receive(self) -> int:
        """Take part in one sync; the version that is loaded now, counted here where the mode sends none.

        RuntimeError when it failed, was refused, or a wait took longer than the deadline.
        """
        transport = Transport(self._group, self._deadline_s, self._device)
        version = self.version + 1
        if self._handshakes:
            version = int(handshake.accept(transport, self.plan, self._refusal)["version"])
        self.dirty = True
        options = SyncOptions(self._bucket_bytes, version, checksum=self._checksum)
        self._mode.receive(self.plan, transport, options, self._load)
        self.version, self.dirty = version, False
        return version

    def _refusal(self, header: dict[str, Any]) -> str | None:
        expected = {"mode": self._mode.name, "bucket_bytes": self._bucket_bytes}
        for key, value in expected.items():
            if header.get(key) != value:
                return f"{key}: expected {value}, the sender has {header.get(key)}"
        if int(header["version"]) <= self.version:
            return f"version {header['version']} is not newer than {self.version}"
        return None
