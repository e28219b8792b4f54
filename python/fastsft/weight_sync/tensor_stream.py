"""The whole tensors of a plan in its order, no more of them at a time than somebody asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.row_shards import Share
from fastsft.weight_sync.sources.source import BroadcastSource, Named, TieCheck

if TYPE_CHECKING:
    import torch


class Feed:
    """Gathers unit by unit; collective. Whoever stops early must `drain`, or the other ranks wait.

    share: of `plan`: this rank's rows in place of whole tensors.
    """

    def __init__(self, source: BroadcastSource, plan: SyncPlan, share: Share | None = None) -> None:
        self._names = (plan if share is None else share.plan).names
        self._known, self._described = set(self._names), source.names()
        self._check = TieCheck(source.sent_twice())
        self._units = source.whole() if share is None else share.units(source.rows())
        self._lends_memory = source.lends_memory
        self._first = 0
        self._window: list[torch.Tensor] = []

    def take(self, first: int, last: int) -> list[torch.Tensor]:
        """Tensors number `first` to `last` of the plan; those before `first` are given up.

        RuntimeError when the model no longer yields what was planned.
        """
        del self._window[: first - self._first]
        self._first = first
        while self._first + len(self._window) <= last:
            unit = next(self._units, None)
            if unit is None:
                raise RuntimeError(f"tensor {self._names[last]} of the plan is gone; make a new plan")
            self._append(unit)
        return self._window[: last - first + 1]

    def drain(self) -> None:
        """Take part in the gathers that are left, and keep nothing. ValueError when tied tensors differ."""
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
                window.append(tensor.detach().clone() if self._lends_memory else tensor)
                number += 1
            elif name in self._known:
                expected = names[number] if number < len(names) else "nothing more"
                raise RuntimeError(
                    f"expected tensor {expected}, got {name}; the model changed, make a new plan"
                )
            elif name not in self._described:
                raise RuntimeError(f"tensor {name} is new in the model; make a new plan with sync_plan")


def drained(feed: Feed, error: BaseException | None) -> BaseException | None:
    """The first failure: `error`, or that of draining. The other ranks are in the gathers that are left,
    whatever happened here."""
    try:
        feed.drain()
    except Exception as failure:
        return error or failure
    return error
