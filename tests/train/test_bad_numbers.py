"""NaN, Inf and spikes on any rank change nothing on all of them.

docs/spec/reliability.md, row R16.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engines import new_engine
from injected_faults import at_call, op_fault
from ranks import run_ranks
from runs import random_dataset
from shard.test_strategies import VOCAB, config, initialise

STRATEGIES = ("no_shard", "shard_grad_op", "full_shard")


def engine_of(groups: dict[str, str], strategy: str, **options: Any) -> Any:
    engine = new_engine(config(False), strategy=strategy, **options, **groups)
    initialise(engine)
    return engine


def step(engine: Any, **options: Any) -> Any:
    rows = np.arange(12)[engine.rank :: engine.world_size]
    weights = [np.full(len(rows), 1 / 200)]
    engine.begin_step(
        random_dataset(12, VOCAB, 40), [rows], weights, learning_rate=1e-2, max_grad_norm=0.5, **options
    )
    return engine.take_results(all=True)[0]


def digests(engine: Any) -> list[tuple[Any, ...]]:
    return [(item.unit, item.state, item.parameters) for item in engine.state_digests()]


def spoil(value: float) -> Any:
    """The gradient of one embedding, and with it the norm."""

    def act(original: Any, args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        args[2].view(-1)[7] = value

    return at_call(1, act)


def spoil_loss(value: float) -> Any:
    def act(original: Any, args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        args[5].fill_(value)

    return at_call(1, act)


def bad_steps(groups: dict[str, str], strategy: str) -> list[str]:
    """What went wrong on this rank, over every guilty rank and kind of fault."""
    engine, wrong = engine_of(groups, strategy), []
    assert step(engine).finite
    for guilty in range(engine.world_size):
        for value in (math.nan, math.inf, -math.inf):
            for op, act in (
                ("embedding_backward", spoil(value)),
                ("linear_cross_entropy", spoil_loss(value)),
            ):
                before, count = digests(engine), engine.step_count
                if engine.rank == guilty:
                    with op_fault(op, act):
                        result = step(engine)
                else:
                    result = step(engine)
                if result.finite or engine.step_count != count or digests(engine) != before:
                    wrong.append(f"{op} {value} on rank {guilty}")
    before = digests(engine)
    if not step(engine).finite or digests(engine) == before:
        wrong.append("a good step afterwards")
    return wrong


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bad_number_on_any_rank_changes_nothing_on_all(strategy: str) -> None:
    assert run_ranks(2, bad_steps, strategy) == [[], []]


def test_alone() -> None:
    assert bad_steps({}, "no_shard") == []


def test_a_loss_above_its_limit_changes_nothing() -> None:
    engine = engine_of({}, "no_shard")
    loss = step(engine).loss
    before = digests(engine)
    result = step(engine, loss_limit=loss / 10)
    assert not result.finite and math.isfinite(result.loss) and result.loss > loss / 10
    assert digests(engine) == before and engine.step_count == 1
    assert step(engine, loss_limit=loss * 2).finite and digests(engine) != before
