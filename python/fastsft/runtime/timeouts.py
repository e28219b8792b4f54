"""Time without progress in a phase before a stuck rank ends itself (docs/spec/reliability.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

PHASES = ("init", "data", "first_step", "step", "save", "evaluation")
_entered: list[tuple[str, float]] = [("none", 0.0)]
_listeners: list[Callable[[], None]] = []


def parse_timeouts(text: str | None) -> dict[str, float]:
    """`"init=300,step=60"` as seconds by phase. ValueError for another phase, and for no number above 0."""
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
    """Of the arguments of a run, what limits depend on."""

    @property
    def phase_timeouts(self) -> str | None: ...
    @property
    def ddp_timeout(self) -> int: ...
    @property
    def world_size(self) -> int: ...


def limit_of(args: TimeLimits, phase: str) -> float:
    """Seconds that `phase` may go without progress; 0, no limit, for a lone rank without a given one."""
    given = parse_timeouts(args.phase_timeouts)
    if phase in given:
        return given[phase]
    # Collectives end after --ddp_timeout with a message of their own, which says more.
    return args.ddp_timeout + 30.0 if args.world_size > 1 else 0.0


@contextmanager
def deadline(args: TimeLimits, name: str) -> Iterator[None]:
    """Inside, a standstill longer than the limit of `name` (one of PHASES) ends this process.

    It leaves with status 3 and one line that names rank, step, phase and the last collective. Nests.
    """
    _enter(name, limit_of(args, name))
    try:
        yield
    finally:
        _entered.pop()
        _renew()


def note_progress() -> None:
    """The phase that this process is in has come on: its deadline begins again, and `heard_by` is told."""
    from fastsft import _C

    _C.note_progress()
    for listener in _listeners:
        listener()


@contextmanager
def heard_by(listener: Callable[[], None]) -> Iterator[None]:
    """Inside, `listener` is called with every note_progress()."""
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
