"""The loss scale against torch.amp.GradScaler, step by step."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastsft.runtime.errors import NotFiniteError
from fastsft.trainer.bad_steps import LossScale


def new_scale(
    first: float = 65536.0, window: int = 2000, fp16: bool = True, optim: str = "adamw_torch"
) -> LossScale:
    return LossScale(
        SimpleNamespace(fp16=fp16, initial_loss_scale=first, loss_scale_window=window, optim=optim)
    )


def result(finite: bool, loss: float = 1.0) -> Any:
    return SimpleNamespace(finite=finite, loss=loss, grad_norm=1.0 if finite else math.inf)


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_the_rule_is_that_of_torch(rate: float, window: int) -> None:
    ours = new_scale(2.0**20, window)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=window)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, draw = torch.optim.SGD([weight], lr=0.0), random.Random(window)
    for step in range(200):
        bad = draw.random() < rate
        theirs.scale(weight.sum() * (math.inf if bad else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        if theirs.get_scale() < 1e-3 or theirs.get_scale() > 1e30:
            break
        assert ours.absorbs(step, result(not bad), math.inf) == bad
        assert ours.value == theirs.get_scale()
        assert ours.state()["good_steps"] == theirs.state_dict()["_growth_tracker"]
    assert step > 20


def test_without_fp16_it_is_one_and_absorbs_nothing() -> None:
    scale = new_scale(fp16=False)
    assert (scale.value, scale.state()) == (1.0, {})
    assert not scale.absorbs(1, result(False), math.inf)
    assert scale.value == 1.0


def test_a_loss_that_is_not_finite_is_not_absorbed() -> None:
    """The scale falls as torch's does, but the step is left to the policy of --on_nonfinite."""
    scale = new_scale()
    assert not scale.absorbs(1, result(False, math.nan), math.inf)
    assert (scale.value, scale.schedule_lag) == (32768.0, 1)


def test_a_spike_leaves_the_scale() -> None:
    scale = new_scale()
    assert not scale.absorbs(1, result(False, 9.0), 5.0)
    assert (scale.value, scale.schedule_lag) == (65536.0, 0)


def test_it_grows_no_further_than_float32() -> None:
    scale = new_scale(2.0**126, 1)
    for step in range(3):
        scale.absorbs(step, result(True), math.inf)
    assert scale.value == 2.0**127


def test_a_scale_that_is_too_small_ends_the_run() -> None:
    scale = new_scale(1.5e-4)
    with pytest.raises(NotFiniteError, match=r"overflow float16 at a loss scale of 0.00015; use --bf16 True"):
        scale.absorbs(1, result(False), math.inf)


def test_state_is_restored() -> None:
    scale, again = new_scale(window=3), new_scale(window=3)
    for step, finite in enumerate([True, False, True, True]):
        scale.absorbs(step, result(finite), math.inf)
    again.restore(scale.state())
    assert again.state() == scale.state() == {"scale": 32768.0, "good_steps": 2, "schedule_lag": 1}


@pytest.mark.parametrize(("optim", "lag"), [("adamw_torch", 2), ("adamw_torch_fused", 0)])
def test_which_schedules_wait(optim: str, lag: int) -> None:
    scale = new_scale(optim=optim)
    for step, finite in enumerate([False, True, False]):
        scale.absorbs(step, result(finite), math.inf)
    assert scale.schedule_lag == lag
