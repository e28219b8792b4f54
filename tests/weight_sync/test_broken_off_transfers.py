"""Who leaves a transfer in the middle ends the group: else the next one would be read as the rest of it."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fastsft.weight_sync import WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.held_operations import release_done
from fastsft.weight_sync.tensor_stream import TensorStream
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import Loaded, in_threads, join, make_groups, start

FOREIGN = ("trinity", "vllm_packed", "sglang")
BYTES = 64  # a tensor, and a bucket


class Case:
    """A sender and a receiver; tensors of equal shapes, all of `value`."""

    def __init__(self, mode: str, load: Callable[[Any], None] | None = None) -> None:
        self._engine = make_engine(
            nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(6)]), "plain", per_tensor=False
        )
        self.groups = make_groups(2)
        self.loaded = Loaded()
        self._options: dict[str, Any] = {"mode": mode, "bucket_bytes": BYTES, "deadline_s": 1.0}
        self.receiver = WeightReceiver(
            self.groups[1], sync_plan(self._engine), load or self.loaded, **self._options
        )

    def send(self, value: float) -> int:
        with torch.no_grad():
            for parameter in self._engine.module.parameters():
                parameter.fill_(value)
        return fsdp_sync_weight_nccl(self._engine, self.groups[0], **self._options)


def fail_at_third(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    take, calls = TensorStream.take, []

    def failing(feed: TensorStream, first: int, last: int) -> list[torch.Tensor]:
        calls.append(first)
        if len(calls) == 3:
            raise type(error)(*error.args)
        return take(feed, first, last)

    monkeypatch.setattr(TensorStream, "take", failing)


@pytest.mark.parametrize("mode", FOREIGN)
@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_a_sender_that_breaks_off_cannot_go_on_with_the_next_version(
    mode: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, outcome = Case(mode), []

    def receive() -> None:
        try:
            outcome.append(case.receiver.receive())
        except RuntimeError as failure:
            outcome.append(failure)

    thread = start("receiver", receive)
    with monkeypatch.context() as patch:
        fail_at_third(patch, error)
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else RuntimeError):
            case.send(1)
    with pytest.raises(RuntimeError, match="this group failed in an earlier sync"):
        case.send(2)
    join([thread], 30)
    assert isinstance(outcome[0], RuntimeError) and case.receiver.dirty


@pytest.mark.parametrize("mode", FOREIGN)
def test_a_receiver_that_breaks_off_cannot_go_on_with_the_next_version(mode: str) -> None:
    calls = []

    def load(_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no room")

    case = Case(mode, load)
    outcomes = in_threads([lambda: case.send(1), case.receiver.receive], 30)
    assert isinstance(outcomes[1], ValueError) and case.receiver.dirty
    with pytest.raises(RuntimeError, match="this group failed in an earlier sync"):
        case.receiver.receive()
    in_threads([group.rebuild for group in case.groups], 30)
    again = in_threads([lambda: case.send(2), case.receiver.receive], 30)
    assert again[1] == 1 and not case.receiver.dirty


def test_a_failure_that_all_have_agreed_on_leaves_the_group_good() -> None:
    """However long its words are, and whatever they escape to."""
    calls = []

    def load(_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("\U0001f479" * 3000)

    case = Case("native", load)
    for outcome in in_threads([lambda: case.send(1), case.receiver.receive], 30):
        assert isinstance(outcome, RuntimeError) and "ValueError: \U0001f479" in str(outcome)
    assert in_threads([lambda: case.send(2), case.receiver.receive], 30) == [1, 1]


@pytest.mark.parametrize("mode", [*FOREIGN, "native"])
def test_a_group_that_failed_ends_with_its_last_reference(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with a full collection some time later: it holds connections and threads."""
    case = Case(mode)

    def receive() -> None:
        with pytest.raises(RuntimeError):
            case.receiver.receive()

    thread = start("receiver", receive)
    alive = weakref.ref(case.groups[0].group)
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            fail_at_third(patch, MemoryError("no room"))
            with pytest.raises(RuntimeError, match="no room"):
                case.send(1)
        case.groups[0] = None
        end = time.monotonic() + 30.0
        while alive() is not None:  # gloo works on what is under way until its deadline
            assert time.monotonic() < end
            time.sleep(0.01)
            release_done()
    finally:
        gc.enable()
    join([thread], 30)
