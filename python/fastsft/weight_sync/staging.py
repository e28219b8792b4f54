"""A frozen copy of this rank's weights on the host, in buffers that the next save reuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.sources.source import Rows, TieCheck, WeightSource

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a save. parts: by the plan's index; one that is not sharded is the whole tensor."""

    rank: int
    world_size: int
    step: int
    plan: SyncPlan
    parts: dict[int, Rows]


class Staging:
    """Host memory for one snapshot. The writer of the last one must have ended before `take`."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def take(self, source: WeightSource, dtype: torch.dtype | None, step: int) -> tuple[Snapshot, str | None]:
        """Copies the rows of this rank; collective, and complete on return.

        Also returns what is wrong on this rank alone, after having taken part in every collective.
        """
        plan = source.plan(dtype)
        index = {name: number for number, name in enumerate(plan.names)}
        check = TieCheck(source.sent_twice())
        parts = self._copy(source.rows(), plan, index, check)
        missing = [name for number, name in enumerate(plan.names) if number not in parts]
        error = check.error or (f"tensors of the plan are gone: {missing[:3]}" if missing else None)
        return Snapshot(source.rank, source.world_size, step, plan, parts), error

    def _copy(
        self, rows: Iterable[Rows], plan: SyncPlan, index: dict[str, int], check: TieCheck
    ) -> dict[int, Rows]:
        import torch

        parts, on_device = {}, False
        for row in rows:
            check.see(row.name, row.tensor)
            number = index.get(row.name)
            if number is None:
                continue
            buffer = self._buffer(number, plan.dtypes[number], row.tensor)
            buffer.copy_(row.tensor.detach(), non_blocking=True)
            on_device = on_device or row.tensor.is_cuda
            parts[number] = Rows(row.name, buffer, row.begin, row.is_sharded)
        if on_device:
            torch.cuda.current_stream().synchronize()
        return parts

    def _buffer(self, number: int, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
        import torch

        buffer = self._buffers.get(number)
        if buffer is None or (buffer.shape, buffer.dtype) != (like.shape, dtype):
            buffer = torch.empty(like.shape, dtype=dtype, pin_memory=like.is_cuda)
            self._buffers[number] = buffer
        return buffer


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous tensor on the host, without a copy."""
    import torch

    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
