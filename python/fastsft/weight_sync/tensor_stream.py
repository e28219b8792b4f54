"""Streams a source's tensors in a plan's order: whole, as this rank's rows, or copied to the host."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.source import BroadcastSource, Load, Named, Rows, TieCheck, WeightSource, chunk_of

_WIDER = (torch.float32, torch.float64, torch.bfloat16)
_HALF_ENDS = 65520.0  # smallest value that float16 rounds to infinity


def beyond_half(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> str | None:
    """Return a message if finite values in `tensor` would overflow in `dtype`; else None.

    Only float16 is checked.
    """
    if dtype != torch.float16 or tensor.dtype not in _WIDER or not tensor.numel():
        return None
    low, high = torch.aminmax(tensor.detach())
    if max(-float(low), float(high)) < _HALF_ENDS:  # False if there are NaNs
        return None
    sizes = tensor.detach().abs()
    lost = sizes[sizes.isfinite() & (sizes >= _HALF_ENDS)]
    if not lost.numel():
        return None
    return (
        f"{name}: expected values that float16 holds, up to 65504, got {lost.numel()} beyond, up to "
        f"{float(lost.max()):g}; take save_dtype='bfloat16'"
    )


class RowShard:
    """The rows in a plan's tensors that one rank sends, as `torch.chunk` divides them.

    Rank 0 also sends scalars and empty tensors. plan (attribute): the rows' plan, under the tensors'
    names.
    begins: each tensor's first row, by name; None for a tensor that is sent whole.
    """

    def __init__(self, plan: SyncPlan, rank: int, world_size: int) -> None:
        self.begins: dict[str, int | None] = {}
        parts = []
        for number, (name, dtype, shape) in enumerate(plan.tensors):
            if not plan.sizes[number] or not shape:
                if rank == 0:
                    self.begins[name] = None
                    parts.append((name, dtype, shape))
                continue
            begin, end = chunk_of(shape, rank, world_size)
            if begin < end:
                self.begins[name] = begin
                parts.append((name, dtype, [end - begin, *shape[1:]]))
        self.plan = SyncPlan(parts)
        self._rows = {name: shape[0] for name, _, shape in parts if shape}

    def units(self, rows: Iterable[Rows]) -> Iterator[list[Named]]:
        """Yield this rank's rows from the parts that a source yields, which may be whole tensors."""
        for part in rows:
            if part.name not in self.begins:
                continue
            begin = self.begins[part.name]
            if begin is None or part.is_sharded:
                yield [(part.name, part.tensor)]
            else:
                yield [(part.name, part.tensor[begin : begin + self._rows[part.name]])]


class ShardAssembler:
    """Joins rows that arrive from several ranks to whole tensors. Thread-safe.

    load: called with finished tensors, by one thread at a time.
    """

    def __init__(self, plan: SyncPlan, load: Load) -> None:
        self._plan, self._load = plan, load
        self._numbers = {name: number for number, name in enumerate(plan.names)}
        self._wholes: dict[str, torch.Tensor] = {}
        self._missing: dict[str, int] = {}
        self._lock = threading.Lock()

    def loader(self, share: RowShard) -> Load:
        """Return a function that takes one rank's rows, and joins them with other ranks' rows.

        share: describes that rank's rows.
        """

        def load(parts: list[tuple[str, torch.Tensor]]) -> None:
            with self._lock:
                joined = [self._join(name, tensor, share.begins[name]) for name, tensor in parts]
                complete = [named for named in joined if named is not None]
                if complete:
                    self._load(complete)

        return load

    def _join(self, name: str, part: torch.Tensor, begin: int | None) -> Named | None:
        number = self._numbers[name]
        shape = self._plan.shapes[number]
        if begin is None or part.shape[0] == shape[0]:
            return name, part
        if name not in self._wholes:
            self._wholes[name] = self._plan.empty(number, part.device)
            self._missing[name] = shape[0]
        self._wholes[name][begin : begin + part.shape[0]] = part
        self._missing[name] -= part.shape[0]
        return (name, self._wholes.pop(name)) if self._missing[name] == 0 else None


class TensorStream:
    """A plan's tensors as a stream, gathered unit by unit. Collective.

    A rank that stops early must call `drain`, because other ranks wait in the gathers. share: this rank's
    rows of `plan`, to stream them instead of whole tensors.
    """

    def __init__(self, source: BroadcastSource, plan: SyncPlan, share: RowShard | None = None) -> None:
        planned = plan if share is None else share.plan
        self._names, self._dtypes = planned.names, planned.dtypes
        self._known, self._described = set(self._names), source.names()
        self._check = TieCheck(source.sent_twice())
        self._units = source.whole() if share is None else share.units(source.rows())
        self._lends_memory = source.lends_memory
        self._first = 0
        self._window: list[torch.Tensor] = []

    def take(self, first: int, last: int) -> list[torch.Tensor]:
        """Return the tensors with numbers `first` to `last` of the plan, and release earlier tensors.

        RuntimeError if the model no longer yields the planned tensors. ValueError for values that overflow in
        the planned dtype.
        """
        self._give_up(first)
        while self._first + len(self._window) <= last:
            unit = next(self._units, None)
            if unit is None:
                raise RuntimeError(f"tensor {self._names[last]} of the plan is gone; make a new plan")
            self._append(unit)
            self._give_up(first)  # also releases empty tensors between buckets, which are never taken
        return self._window[: last - first + 1]

    def _give_up(self, first: int) -> None:
        count = min(first - self._first, len(self._window))
        del self._window[:count]
        self._first += count

    def drain(self) -> None:
        """Take part in the remaining gathers, and discard their tensors.

        ValueError if tied tensors differ.
        """
        self._window = []
        for unit in self._units:
            for name, tensor in unit:
                self._check.see(name, tensor)
        self._check.settle()

    def _append(self, unit: list[Named]) -> None:
        names, window, apart = self._names, self._window, self._check.names
        number = self._first + len(window)
        for name, tensor in unit:
            if name in apart:
                self._check.see(name, tensor)
            if number < len(names) and names[number] == name:
                if (lost := beyond_half(name, tensor, self._dtypes[number])) is not None:
                    raise ValueError(lost)
                window.append(tensor.detach().clone() if self._lends_memory else tensor)
                number += 1
            elif name in self._known:
                expected = names[number] if number < len(names) else "nothing more"
                raise RuntimeError(
                    f"expected tensor {expected}, got {name}; the model changed, make a new plan"
                )
            elif name not in self._described:
                raise RuntimeError(f"tensor {name} is new in the model; make a new plan with sync_plan")


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a save.

    parts: rows or whole tensors, by number in the plan.
    """

    rank: int
    world_size: int
    step: int
    plan: SyncPlan
    parts: dict[int, Rows]


class Staging:
    """Host memory for one snapshot. The next `take` overwrites it."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def take(self, source: WeightSource, dtype: torch.dtype | None, step: int) -> tuple[Snapshot, str | None]:
        """Copy this rank's rows. Return the snapshot, and an error message or None. Collective.

        A rank with an error still takes part in all collectives.
        """
        plan = source.plan(dtype)
        index = {name: number for number, name in enumerate(plan.names)}
        check = TieCheck(source.sent_twice())
        lost: list[str] = []
        parts = self._copy(source.rows(), plan, index, check, lost)
        missing = [name for number, name in enumerate(plan.names) if number not in parts]
        gone = f"tensors of the plan are gone: {missing[:3]}" if missing else None
        error = check.error or gone or next(iter(lost), None)
        return Snapshot(source.rank, source.world_size, step, plan, parts), error

    def _copy(
        self, rows: Iterable[Rows], plan: SyncPlan, index: dict[str, int], check: TieCheck, lost: list[str]
    ) -> dict[int, Rows]:
        """Copy `rows` into the buffers.

        lost: list to which messages about values that overflow in their dtype are added.
        """
        parts, on_device = {}, False
        for row in rows:
            check.see(row.name, row.tensor)
            number = index.get(row.name)
            if number is None:
                continue
            buffer = self._buffer(number, plan.dtypes[number], row.tensor)
            if (wrong := beyond_half(row.name, row.tensor, plan.dtypes[number])) is not None:
                lost.append(wrong)
            buffer.copy_(row.tensor.detach(), non_blocking=True)
            on_device = on_device or row.tensor.is_cuda
            parts[number] = Rows(row.name, buffer, row.begin, row.is_sharded)
        if on_device:
            torch.cuda.current_stream().synchronize()
        return parts

    def _buffer(self, number: int, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:

        buffer = self._buffers.get(number)
        if buffer is None or (buffer.shape, buffer.dtype) != (like.shape, dtype):
            buffer = torch.empty(like.shape, dtype=dtype, pin_memory=like.is_cuda)
            self._buffers[number] = buffer
        return buffer
