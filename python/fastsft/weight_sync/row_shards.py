"""Rows of a plan that each trainer rank sends when every rank sends its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.sources.source import Load, Named, Rows, chunk_of

if TYPE_CHECKING:
    import torch


class Share:
    """Rank `rank`'s rows of the tensors of `plan`, cut as `torch.chunk` cuts; rank 0 also sends what has no
    rows to cut: scalars, and tensors without elements.

    plan: of those rows, under the tensors' own names. begins: the first row of each, by name; None for a
    tensor that is sent whole.
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
        """From the parts that a source yields, whole ones and this rank's own."""
        for part in rows:
            if part.name not in self.begins:
                continue
            begin = self.begins[part.name]
            if begin is None or part.is_sharded:
                yield [(part.name, part.tensor)]
            else:
                yield [(part.name, part.tensor[begin : begin + self._rows[part.name]])]


class Joining:
    """Puts the rows that arrive from several ranks together; safe from many threads. load: gets each tensor
    when it is whole, one call at a time."""

    def __init__(self, plan: SyncPlan, load: Load) -> None:
        self._plan, self._load = plan, load
        self._numbers = {name: number for number, name in enumerate(plan.names)}
        self._wholes: dict[str, torch.Tensor] = {}
        self._missing: dict[str, int] = {}
        self._lock = threading.Lock()

    def loader(self, share: Share) -> Load:
        """A function that takes the rows of one rank."""

        def load(parts: list[tuple[str, torch.Tensor]]) -> None:
            with self._lock:
                joined = [self._join(name, tensor, share.begins[name]) for name, tensor in parts]
                complete = [each for each in joined if each is not None]
                if complete:
                    self._load(complete)

        return load

    def _join(self, name: str, part: torch.Tensor, begin: int | None) -> tuple[str, Any] | None:
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
