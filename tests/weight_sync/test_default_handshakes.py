"""Two plans of equal sizes: told apart where both ends are fastsft's, in every mode, without being asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastsft.weight_sync import SyncPlan, WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.modes import MODES
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import Loaded, in_threads, make_groups

ONE_SENDER = sorted(name for name, mode in MODES.items() if not mode.every_rank)


def turned(plan: SyncPlan) -> SyncPlan:
    """The tensors the other way round, all of one size."""
    return SyncPlan([(name, dtype, tuple(shape)) for name, dtype, shape in reversed(plan.tensors)])


@pytest.mark.parametrize("mode", ONE_SENDER)
def test_another_order_is_an_error_on_both_ends(mode: str) -> None:
    engine = make_engine(torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(3)]), "plain")
    groups, loaded, options = make_groups(2), Loaded(), {"mode": mode, "deadline_s": 30.0}
    receiver = WeightReceiver(groups[1], turned(sync_plan(engine)), loaded, **options)
    send = lambda **more: fsdp_sync_weight_nccl(engine, groups[0], **options, **more)  # noqa: E731
    for outcome in in_threads([send, receiver.receive]):
        assert isinstance(outcome, RuntimeError) and "2.weight" in str(outcome), outcome
    assert (loaded.tensors, receiver.version, receiver.dirty) == ([], 0, False)
    # All have heard of it: the group is as good as before.
    receiver = WeightReceiver(groups[1], sync_plan(engine), loaded, **options)
    sent, received = in_threads([send, receiver.receive])
    assert sent == received
    sent_tensors: dict[str, Any] = dict(engine.module.named_parameters())
    assert all(torch.equal(tensor, sent_tensors[name]) for name, tensor in loaded.tensors)


@pytest.mark.parametrize("mode", [name for name in ONE_SENDER if not MODES[name].handshakes])
def test_without_them_the_stream_is_what_receivers_of_others_expect(mode: str) -> None:
    """Over the same group, when both ends say so: no byte but those of the tensors."""
    engine = make_engine(torch.nn.Linear(4, 4), "plain")
    groups, loaded = make_groups(2), Loaded()
    options: dict[str, Any] = {"mode": mode, "deadline_s": 30.0}
    receiver = WeightReceiver(groups[1].group, sync_plan(engine), loaded, **options)  # a process group
    outcomes = in_threads([
        lambda: fsdp_sync_weight_nccl(engine, groups[0], handshakes=False, **options), receiver.receive,
    ])  # fmt: skip
    assert outcomes == [1, 1] and len(loaded.tensors) == 2
