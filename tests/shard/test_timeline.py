"""What runs beside what, from the recorded order of a step on gloo ranks: no clock is looked at."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

from engines import new_engine
from fastsft import _C
from ranks import run_ranks
from runs import random_dataset
from shard.test_strategies import HYBRID, ROWS, VOCAB, config, initialise

LAYERS = 4


class Span(NamedTuple):
    track: str
    name: str
    began: int
    ended: int

    def around(self, other: Span) -> bool:
        return self.began < other.began and other.ended < self.ended


def record(
    groups: dict[str, str],
    strategy: str,
    tied: bool,
    prefetch: bool = True,
    micro_batches: int = 2,
    blocking: bool = False,
    steps: int = 1,
    sync_each_batch: bool = True,
) -> list[Span]:
    """The `steps` of a run after its first, so that nothing of a start is in them."""
    engine = new_engine(
        config(tied, layers=LAYERS), strategy=strategy, prefetch=prefetch, blocking=blocking,
        sync_each_batch=sync_each_batch, **groups,
    )  # fmt: skip
    initialise(engine)
    dataset = random_dataset(ROWS, VOCAB, 40)
    mine = np.array_split(np.arange(ROWS)[engine.rank :: engine.world_size], micro_batches)
    weights = [np.full(len(part), 1 / 200) for part in mine]
    spans: list[Any] = []
    for step in range(1 + steps):
        if step == 1:
            engine.start_trace(capacity=100_000)
        engine.begin_step(dataset, mine, weights, learning_rate=1e-3)
        if step == 1:
            engine.take_results(all=True)
    spans = engine.stop_trace()
    assert _C.trace_dropped() == 0
    return [Span(span.track, span.name, span.began, span.ended) for span in spans]


def of(spans: list[Span], track: str, name: str = "") -> list[Span]:
    return [span for span in spans if span.track == track and name in span.name]


def whole_at_once(spans: list[Span]) -> int:
    """The most spans that are open at any point."""
    points = sorted([(s.began, 1) for s in spans] + [(s.ended, -1) for s in spans])
    return int(np.cumsum([change for _, change in points]).max())


def check_gathers_overlap(spans: list[Span], tied: bool) -> None:
    """While a block computes, the next unit that is not whole yet is under way."""
    names = [f"block.{layer}" for layer in range(LAYERS)]
    forward = [*names, *([] if tied else ["head"])]
    pairs = [("forward", here, there) for here, there in itertools.pairwise(forward)]
    pairs += [("backward", here, there) for here, there in itertools.pairwise(names[::-1])]
    for what, here, there in pairs:
        computes = of(spans, "compute", f"{what} {here}")
        assert computes
        for compute in computes:
            gathers = [s for s in of(spans, "gather", f"all_gather {there}") if s.around(compute)]
            assert gathers, f"{what} {here} ran without the gather of {there} beside it"


def check_reductions_overlap(spans: list[Span], micro_batches: slice = slice(None)) -> None:
    """The reduction of a block runs beside the backward of the block below."""
    for layer in range(1, LAYERS):
        for compute in of(spans, "compute", f"backward block.{layer - 1}")[micro_batches]:
            reductions = [s for s in of(spans, "reduce", f"block.{layer}") if s.around(compute)]
            assert reductions, f"backward block.{layer - 1} ran without the reduction of block.{layer}"


def check_no_waits(spans: list[Span]) -> None:
    """The host waits for the device behind the step, never inside; a wait is recorded on every device."""
    (step,) = of(spans, "host", "step")
    waits = of(spans, "host", "synchronize")
    assert [wait.name for wait in waits if step.ended < wait.began] == ["synchronize result"] * 2
    inside = sorted({wait.name for wait in waits if step.around(wait)})
    assert not inside, f"the host waited inside a step: {inside}"


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_full_shard_gathers_and_reduces_behind_compute(world_size: int, tied: bool) -> None:
    for spans in run_ranks(world_size, record, "full_shard", tied):
        check_gathers_overlap(spans, tied)
        check_reductions_overlap(spans)
        assert whole_at_once(of(spans, "parameters")) == (3 if tied else 2)
        check_no_waits(spans)


def test_the_check_sees_gathers_that_are_not_ahead() -> None:
    for spans in run_ranks(2, record, "full_shard", False, False):
        with pytest.raises(AssertionError, match="ran without the gather"):
            check_gathers_overlap(spans, False)


def test_the_checks_see_reductions_and_steps_that_are_waited_for() -> None:
    """`blocking` waits for every reduction at once and for the device behind every micro-batch."""
    for strategy in ("full_shard", "shard_grad_op", "no_shard"):
        (spans, _) = run_ranks(2, record, strategy, False, True, 2, True)
        with pytest.raises(AssertionError, match="ran without the reduction of block"):
            check_reductions_overlap(spans, slice(-1, None))
        with pytest.raises(AssertionError, match=r"inside a step: ..synchronize micro-batch"):
            check_no_waits(spans)


@pytest.mark.parametrize("strategy", _C.strategies())
def test_no_strategy_waits_inside_a_step(strategy: str) -> None:
    nodes = 2 if _C.strategies()[strategy] else 0
    for spans in run_ranks(2 * max(nodes, 1), record, strategy, False, node_size=nodes):
        check_no_waits(spans)


@pytest.mark.parametrize("strategy", ["shard_grad_op", "full_shard"])
def test_every_unit_is_reduced_once_a_micro_batch(strategy: str) -> None:
    for spans in run_ranks(2, record, strategy, False, True, 3):
        for layer in range(LAYERS):
            assert len(of(spans, "reduce", f"reduce_scatter block.{layer}")) == 3
        check_reductions_overlap(spans)
        assert whole_at_once(of(spans, "gradients")) == 2
        assert len(of(spans, "gather", "all_gather block.1")) == (6 if strategy == "full_shard" else 1)


@pytest.mark.parametrize("prefetch", [True, False])
def test_updated_units_are_gathered_behind_the_update_of_the_next(prefetch: bool) -> None:
    """And the last one behind the next forward pass, which waits for it at its first use."""
    for spans in run_ranks(2, record, "shard_grad_op", False, prefetch, 2, False, 2):
        update = of(spans, "compute", "update")[0]
        gathers = sorted(of(spans, "gather"), key=lambda span: span.began)[: LAYERS + 2]
        assert all(update.began < gather.began < update.ended for gather in gathers)
        updates = [s for s in of(spans, "compute", "adamw") if update.around(s)]
        behind = [gather for gather in gathers if any(gather.around(adamw) for adamw in updates)]
        first_block = of(spans, "compute", "forward block.0")[2]
        if prefetch:
            assert len(behind) == LAYERS + 1
            assert gathers[-1].ended > first_block.ended
        else:
            assert not behind and gathers[-1].ended < update.ended


@pytest.mark.parametrize("strategy", HYBRID)
def test_copies_are_summed_once_a_step_behind_compute(strategy: str) -> None:
    """A unit's sum over the nodes follows its last reduction, beside the backward two blocks below."""
    for spans in run_ranks(4, record, strategy, False, True, 3, node_size=2):
        units = ["embedding", "head", *(f"block.{layer}" for layer in range(LAYERS))]
        for unit in units:
            within = of(spans, "reduce", f"reduce_scatter {unit}")
            (between,) = of(spans, "reduce", f"all_reduce copies of {unit}")
            assert len(within) == 3 and max(span.ended for span in within) < between.began
        for layer in range(2, LAYERS):
            compute = of(spans, "compute", f"backward block.{layer - 2}")[-1]
            assert of(spans, "reduce", f"copies of block.{layer}")[0].around(compute)
        gathers = len(of(spans, "gather", "all_gather block.1"))
        assert gathers == (6 if strategy == "hybrid_shard" else 1)


def test_no_shard_reduces_each_unit_once_a_step() -> None:
    for spans in run_ranks(2, record, "no_shard", False):
        names = sorted(span.name for span in of(spans, "reduce", "all_reduce"))
        units = [
            "embedding",
            "head",
            *(f"block.{layer}" for layer in range(LAYERS)),
            "loss and gradient norm",
        ]
        assert names == sorted(f"all_reduce {unit}" for unit in units)
        check_reductions_overlap(spans, slice(-1, None))


def test_uploads_ops_and_updates_are_in_the_timeline() -> None:
    (spans,) = run_ranks(1, record, "no_shard", False)
    assert len(of(spans, "upload")) == 2 and len(of(spans, "compute", "update")) == 1
    for block in of(spans, "compute", "forward block."):
        assert [s for s in of(spans, "compute", "attention") if block.around(s)]


def test_a_full_ring_drops_the_oldest_and_says_so() -> None:
    engine = _C.Engine(config(False))
    engine.start_trace(capacity=3)
    rows = np.arange(4)
    engine.begin_step(random_dataset(4, VOCAB, 20), [rows], [np.ones(4)], learning_rate=1e-3)
    spans = engine.stop_trace()
    assert len(spans) <= 3 and _C.trace_dropped() > 10
    assert engine.stop_trace() == []
    with pytest.raises(ValueError, match="capacity: expected at least one span, got 0"):
        engine.start_trace(capacity=0)
