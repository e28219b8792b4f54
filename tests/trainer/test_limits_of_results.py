"""The wait for a step's results has the limit of that step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from fastsft.trainer import stepper


@pytest.mark.parametrize(
    "in_flight, phase", [([1], "first_step"), ([1, 2], "first_step"), ([2], "step"), ([], "step")]
)
def test_results_have_the_limit_of_the_oldest_step(
    in_flight: list[int], phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """global_step is counted when a step begins, which on a GPU is long before its end."""
    entered = []

    @contextmanager
    def deadline(args: object, name: str) -> Iterator[None]:
        entered.append(name)
        yield

    monkeypatch.setattr(stepper, "deadline", deadline)
    made = object.__new__(stepper.Stepper)
    made._setup = SimpleNamespace(args=None, engine=SimpleNamespace(take_results=lambda all: []))  # type: ignore[assignment]
    made._state = SimpleNamespace(global_step=2)  # type: ignore[assignment]
    made._first_step = 1
    made._in_flight = deque(stepper._InFlightStep(step, 1e-3, 0.0, True) for step in in_flight)
    made._take_results(all=True)
    assert entered == [phase]
