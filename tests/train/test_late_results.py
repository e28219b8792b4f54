"""Steps begun without waiting: results one step late, in order, each once, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engines import new_engine
from fastsft import _C
from runs import random_dataset
from shard.test_strategies import VOCAB, config, initialise


def engine_with(**options: Any) -> Any:
    engine = new_engine(config(False), **options)
    initialise(engine)
    return engine


def begin(engine: Any, step: int, weight: float = 1 / 200) -> None:
    rows = np.random.default_rng(step).permutation(12)[:6]
    weights = [np.full(6, weight)]
    engine.begin_step(random_dataset(12, VOCAB, 40), [rows], weights, learning_rate=1e-2, max_grad_norm=0.5)


def test_results_come_one_step_late_and_are_the_same() -> None:
    late, prompt = engine_with(results_behind=1), engine_with()
    seen, expected = [], []
    for step in range(4):
        begin(late, step)
        begin(prompt, step)
        seen.append([result.loss for result in late.take_results(all=False)])
        expected += [result.loss for result in prompt.take_results(all=False)]
    assert seen == [[], expected[:1], expected[1:2], expected[2:3]]
    assert [result.loss for result in late.take_results(all=True)] == expected[3:]
    assert late.take_results(all=True) == [] and late.step_count == 4


def test_a_bad_step_between_good_ones_changes_nothing() -> None:
    spoilt, clean = engine_with(results_behind=1), engine_with()
    begin(spoilt, 0)
    begin(spoilt, 1, weight=np.inf)
    begin(spoilt, 2)
    for step in (0, 2):
        begin(clean, step)
    finite = [result.finite for result in spoilt.take_results(all=True)]
    assert finite == [True, False, True] and spoilt.step_count == clean.step_count == 2
    ours, expected = spoilt.named_parameters(), clean.named_parameters()
    assert all((ours[name] == expected[name]).all() for name in expected)


def test_unknown_devices_say_what_is_expected() -> None:
    with pytest.raises(ValueError, match='device is "tpu", expected "cpu" or "cuda:<number>"'):
        _C.Engine(config(False), device="tpu")
    if not _C.with_cuda:
        with pytest.raises(ValueError, match="built without CUDA kernels"):
            _C.Engine(config(False), device="cuda:0")
