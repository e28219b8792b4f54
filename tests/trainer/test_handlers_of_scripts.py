"""Signal handlers that a script has set stay, as with transformers' Trainer."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from fastsft.trainer.signals import StartGuard
from trainer_pairs import Plain, check_equal, losses, ours, theirs, unrounded

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Raising(transformers.TrainerCallback):
    """Raises signal `number` at step 2. looks: stop the run once the script's handler has filled `notes`."""

    def __init__(self, number: int, notes: list[int], *, looks: bool) -> None:
        self.number, self.notes, self.looks = number, notes, looks

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            signal.raise_signal(self.number)
        control.should_training_stop = self.looks and bool(self.notes)


@pytest.mark.covering
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("looks", [False, True])
def test_the_handler_is_called_and_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    looks: bool,
) -> None:
    unrounded(monkeypatch)
    curves, seen = [], []
    for make in (theirs, ours):
        notes: list[int] = []
        signal.signal(number, lambda *given, notes=notes: notes.append(given[0]))
        trainer = make(tmp_path / make.__name__, Plain())
        trainer.add_callback(Raising(number, notes, looks=looks))
        curves.append(losses(trainer))
        seen.append(notes)
    assert seen == [[number], [number]]
    assert len(curves[0]) == (2 if looks else 8)
    check_equal(curves[1], curves[0])
    # It is said once in a process.
    assert looks or f"{signal.Signals(number).name}: the handler that the script has set" in caplog.text


def test_a_handler_that_is_set_while_train_runs_stays(tmp_path: Path) -> None:
    def mine(*_: Any) -> None: ...

    def on_step_end(*_: Any, **__: Any) -> None:
        signal.signal(signal.SIGTERM, mine)

    trainer = ours(tmp_path, Plain())
    trainer.add_callback(type("Setting", (transformers.TrainerCallback,), {"on_step_end": on_step_end})())
    trainer.train()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_c_and_before_a_program(tmp_path: Path) -> None:
    def mine(*_: Any) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        try:
            with StartGuard():
                assert signal.getsignal(signal.SIGTERM) is mine
                signal.raise_signal(signal.SIGUSR1)
                losses(ours(tmp_path, Plain(4)))
            signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert (tmp_path / "stacks").read_text().count("in test_handlers_of_c") == 2
