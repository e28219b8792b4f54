"""WeightReceiver: the other end of fsdp_sync_weight_nccl, for rollout workers and tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastsft.weight_sync import handshake
from fastsft.weight_sync.broadcast import DEFAULT_BUCKET_BYTES
from fastsft.weight_sync.modes import SyncOptions, sync_mode
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.row_shards import Joining, Share
from fastsft.weight_sync.sources.source import Load
from fastsft.weight_sync.transport import Transport
from fastsft.weight_sync.validation import seconds, whole_number


class WeightReceiver:
    """Takes part in syncs as a rank above 0 of `group`, a process group or a `WeightGroup`.

    For mode "native_multiroot" `group` is a list: one with each trainer rank, in their order. plan: a
    `SyncPlan`, or metadata as Trinity's Synchronizer gives it. load: called with lists of (name, tensor) as
    they arrive. mode, bucket_bytes and handshakes: the sender's. deadline_s: of every single wait.
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
        self._mode, self._device = sync_mode(mode), device
        self._deadline_s = seconds("deadline_s", deadline_s)
        if self._mode.every_rank != isinstance(group, (list, tuple)):
            expected = "a list of groups, one a trainer rank" if self._mode.every_rank else "one group"
            raise ValueError(f"group: expected {expected} for mode {mode!r}, got {type(group).__name__}")
        self._groups, self._load = list(group) if self._mode.every_rank else [group], load
        self.plan = plan if isinstance(plan, SyncPlan) else SyncPlan(plan)
        self._handshakes = handshakes or self._mode.handshakes
        self._bucket_bytes, self._checksum = whole_number("bucket_bytes", bucket_bytes), checksum
        self.version, self.dirty = 0, False
        self._shares: list[Share] = []

    def receive(self) -> int:
        """Take part in one sync; the version that is loaded now, counted here where the mode sends none.

        RuntimeError when it failed, was refused, or a wait took longer than the deadline.
        """
        transports = [Transport(group, self._deadline_s, self._device) for group in self._groups]
        versions = {self.version + 1}
        if self._handshakes:
            versions = set(_together([self._accepting(root, each) for root, each in enumerate(transports)]))
        if len(versions) > 1:
            for transport in transports:
                transport.end()
            raise RuntimeError(f"the trainer ranks send versions {sorted(versions)}; expected one")
        (version,) = versions
        self.dirty = True
        options = SyncOptions(self._bucket_bytes, version, checksum=self._checksum)
        if self._mode.every_rank:
            self._receive_shares(transports, options)
        else:
            self._receive_from(transports[0], self.plan, options, self._load)
        self.version, self.dirty = version, False
        return version

    def _receive_shares(self, transports: list[Transport], options: SyncOptions) -> None:
        size = len(transports)
        self._shares = self._shares or [Share(self.plan, root, size) for root in range(size)]
        joining = Joining(self.plan, self._load)
        _together([
            functools.partial(self._receive_from, transport, share.plan, options, joining.loader(share))
            for share, transport in zip(self._shares, transports, strict=True)
        ])  # fmt: skip

    def _receive_from(self, transport: Transport, plan: SyncPlan, options: SyncOptions, load: Load) -> None:
        with transport.transfer():
            self._mode.receive(plan, transport, options, load)

    def _accepting(self, root: int, transport: Transport) -> Callable[[], int]:
        def accept() -> int:
            with transport.transfer():
                header = handshake.accept(transport, self.plan, functools.partial(self._refusal, root))
                return int(header["version"])

        return accept

    def _refusal(self, root: int, header: dict[str, Any]) -> str | None:
        expected: dict[str, Any] = {"mode": self._mode.name, "bucket_bytes": self._bucket_bytes}
        if self._mode.every_rank:
            expected |= {"root": root, "roots": len(self._groups)}
        for key, value in expected.items():
            if header.get(key) != value:
                return f"{key}: expected {value}, the sender has {header.get(key)}"
        if int(header["version"]) <= self.version:
            return f"version {header['version']} is not newer than {self.version}"
        return None


def _together(works: list[Callable[[], Any]]) -> list[Any]:
    """The result of each, on a thread each; the first failure, when all have ended. Each wait of theirs has
    a deadline."""
    if len(works) == 1:
        return [works[0]()]
    with ThreadPoolExecutor(len(works), thread_name_prefix="weights-from-root") as threads:
        futures = [threads.submit(work) for work in works]
    return [future.result() for future in futures]
