"""Limit the time without progress in each phase of a run (docs/spec/reliability.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PHASES = ("init", "data", "first_step", "step", "save", "evaluation")
_entered: list[tuple[str, float]] = [("none", 0.0)]
_listeners: list[Callable[[], None]] = []


def parse_timeouts(text: str | None) -> dict[str, float]:
    """Parse a text such as "init=300,step=60" into a dictionary of seconds by phase.

    ValueError for an unknown phase or an invalid number.
    """
    limits = {}
    for item in (text or "").split(",") if text else []:
        name, _, seconds = (part.strip() for part in item.partition("="))
        try:
            limits[name] = float(seconds)
        except ValueError:
            limits[name] = -1.0
        if name not in PHASES or not limits[name] > 0:
            expected = "=SECONDS,".join(PHASES)
            raise ValueError(f"--phase_timeouts: expected {expected}=SECONDS, or some of them, got {item!r}")
    return limits


class TimeLimits(Protocol):
    """The training arguments that set the limits."""

    @property
    def phase_timeouts(self) -> str | None: ...
    @property
    def ddp_timeout(self) -> int: ...
    @property
    def world_size(self) -> int: ...


def phase_limit(args: TimeLimits, phase: str) -> float:
    """Return the seconds that `phase` may take without progress; 0: no limit, as for a single rank."""
    given = parse_timeouts(args.phase_timeouts)
    if phase in given:
        return given[phase]
    # The default is longer than --ddp_timeout, so that a stuck collective fails first: its message is more
    # precise.
    return args.ddp_timeout + 30.0 if args.world_size > 1 else 0.0


@contextmanager
def deadline(args: TimeLimits, name: str) -> Iterator[None]:
    """End this process if the block makes no progress for longer than the limit of the phase `name`.

    name: one of PHASES. The process exits with status 3 and a line that names rank, step, phase and the last
    collective. Blocks may be nested; the inner limit then applies.
    """
    _enter(name, phase_limit(args, name))
    try:
        yield
    finally:
        _entered.pop()
        _renew()


def note_progress() -> None:
    """Restart the present phase's time limit, and call the listeners that `heard_by` has registered."""
    from fastsft import _C

    _C.note_progress()
    for listener in _listeners:
        listener()


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at every `note_progress()` during the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _enter(name: str, seconds: float) -> None:
    _entered.append((name, seconds))
    _renew()


def _renew() -> None:
    from fastsft import _C

    name, seconds = _entered[-1]
    _C.enter_phase(name, timeout_seconds=seconds)
