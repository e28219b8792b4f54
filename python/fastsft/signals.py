"""SIGTERM, SIGINT and SIGUSR1 ask for a checkpoint; the run answers after the step that is under way."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from fastsft import launcher

EXIT_BASE = 128  # exit status of a run stopped by a signal: 128 + its number, as shells do


class SignalGuard:
    """While entered, signals are noted instead of killing. A second Ctrl-C interrupts at once."""

    only_save = int(signal.SIGUSR1)  # the run goes on after this one

    def __init__(self) -> None:
        self._noted = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        self._noted = number

    def take(self) -> int:
        """The signal that any rank has received, or 0; the same on all ranks, collective."""
        noted = max(self._noted, 0)
        if launcher.launch().world_size > 1:
            import torch
            import torch.distributed as dist

            flag = torch.tensor([noted])
            with launcher.host_collective("agreement on signals"):
                dist.all_reduce(flag, op=dist.ReduceOp.MAX)
            noted = int(flag.item())
        if noted == self.only_save:
            self._noted = 0
        return noted
