"""Trinity's monitor, which ours must work with (docs/spec/weight_sync.md, section 2.2)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


class TrinityMonitor:
    """Knows neither leases nor failures; asserts that steps grow; writes its files in place."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.calls: list[tuple[object, ...]] = []
        self.counter: defaultdict[int, int] = defaultdict(int)
        self.announced: set[int] = set()
        self.latest = 0

    async def register_thread_count(
        self, step: int, *, state_dict_thread_count: int = 0, checkpoint_thread_count: int = 0
    ) -> None:
        self.counter[step] += state_dict_thread_count + checkpoint_thread_count

    async def monitor_step(self, step: int, is_state_dict: bool = False) -> None:
        self.announced.add(step)
        self._publish(step)

    async def notify_started(self, node_id: str, job_id: str) -> None:
        self.calls.append(("started",))

    async def notify_finished(self, step: int, is_state_dict: bool = False) -> None:
        self.calls.append(("finished", step, is_state_dict))
        self.counter[step] -= 1
        self._publish(step)

    async def get_calls(self) -> list[tuple[object, ...]]:
        return self.calls

    def _publish(self, step: int) -> None:
        if step in self.announced and self.counter[step] == 0 and step != self.latest:
            assert step > self.latest
            self.latest = step
            (self.directory / "latest_state_dict_iteration.txt").write_text(str(step))
