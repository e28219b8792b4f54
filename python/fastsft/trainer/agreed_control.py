"""Switches that callbacks set on one rank count on all; they travel with the signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastsft.ranks.process_group import gather_objects, host_collective
from fastsft.runtime.launch import launch
from fastsft.trainer.callback_handler import STOPS, SWITCHES
from fastsft.trainer.signals import SignalGuard

if TYPE_CHECKING:
    from fastsft.trainer.running import Running


class RunGuard(SignalGuard):
    """A SignalGuard whose exchange also takes bits of the loop."""

    def __enter__(self) -> RunGuard:
        super().__enter__()
        return self

    def exchange(self, bits: Sequence[bool] = ()) -> tuple[int, list[bool]]:
        """Combine pending signals and `bits` of all ranks by logical or. Collective, one small exchange."""
        noted, found = self._noted(), list(bits)
        if launch().world_size > 1:
            ends = 0 if noted == self.only_save else noted
            ends, noted, *numbers = _greatest([ends, noted, *map(int, bits)])
            noted, found = ends or noted, [number > 0 for number in numbers]
        if noted == self.only_save:
            self._is_to_save = False
        return noted, found


def _greatest(numbers: list[int]) -> list[int]:
    """Of all ranks, one by one."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(numbers)
    with host_collective("agreement on signals and on the switches of callbacks"):
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [int(value) for value in values.tolist()]


class AgreedControl:
    """The switches of `trainer.control`, and the signals of a run, as all ranks know them."""

    def __init__(self, trainer: Running, guard: RunGuard) -> None:
        self._trainer, self._guard = trainer, guard
        self._asked = 0  # a signal that all ranks know of and nobody has answered
        self._stops = False  # as of the last agreement

    def agree(self, *, logged: bool = False) -> bool:
        """Set what any rank has set; collective. True where some ranks have `logged`, and not all.

        ValueError on all ranks where a callback of one has set a stop that cannot be followed.
        """
        checks = self._trainer.event_checks
        refused = checks.refused if checks is not None else None
        control = self._trainer.control
        mine = [bool(getattr(control, name)) for name in SWITCHES]
        asked, bits = self._guard.exchange([*mine, logged, not logged, refused is not None])
        self._asked = asked or self._asked
        *switches, some, not_all, is_refused = bits
        if is_refused:
            raise ValueError(next(text for text in gather_objects(refused) if text is not None))
        for name, wanted in zip(SWITCHES, switches, strict=True):
            if wanted:
                setattr(control, name, True)
        self._stops = any(switches[: len(STOPS)])
        return some and not_all

    def take_signal(self) -> int:
        """The signal that is to be answered now, or 0."""
        asked, self._asked = self._asked, 0
        return asked

    def exchange_signals(self) -> int:
        """The same, after an exchange; collective."""
        asked, _ = self._guard.exchange()
        known = self.take_signal()
        return asked or known

    def stops_before_step(self) -> bool:
        """True if no step is to be begun: a callback of any rank said so before the epoch's first step.

        One that says so at on_step_begin is heard where there is one rank; of several, the others would wait.
        """
        if launch().world_size > 1:
            return self._stops
        return any(getattr(self._trainer.control, name) for name in STOPS)
