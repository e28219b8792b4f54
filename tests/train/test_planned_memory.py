"""The plan beside what the engine says it holds, and beside torch's allocator."""

from __future__ import annotations

import itertools

import pytest
import torch

from fastsft import _C
from memory_run import MODELS, MemoryRun, measure

CELLS = list(zip(itertools.cycle(MODELS), itertools.product(
    ("no_shard", "shard_grad_op", "full_shard"), ("none", "gate_up", "block")
), strict=False))  # fmt: skip
ALONE = list(itertools.product(MODELS, ("none", "selective", "gate_up", "block")))


def assert_planned(run: MemoryRun) -> None:
    result = measure(run)
    held, parts = result["held"], result["plan"]["parts"]
    for name in ("parameters", "gradients", "optimizer"):
        assert held[name] == parts[name], name
    assert held["offloaded"] == parts.get("optimizer on the host", 0)
    assert held["buffers"] == parts["whole units"]
    assert held["activations"] == parts["activations"] + parts["labelled tokens"]
    assert result["plan"]["peak"] == pytest.approx(result["measured"], rel=0.05)


@pytest.mark.parametrize(("model", "recompute"), ALONE)
def test_one_rank(model: str, recompute: str) -> None:
    assert_planned(MemoryRun(model, recompute=recompute, tokens=256))


@pytest.mark.parametrize(("model", "cell"), CELLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks(model: str, cell: tuple[str, str], dtype: str) -> None:
    """Each strategy and policy, the models in turn; the whole table is benchmarks/bench_memory_plan.py's."""
    strategy, recompute = cell
    assert_planned(MemoryRun(model, strategy, recompute, dtype, ranks=2, tokens=256))


@pytest.mark.parametrize("strategy", ["hybrid_shard", "hybrid_shard_zero2"])
@pytest.mark.parametrize("node_size", [1, 2])
def test_four_ranks_in_nodes(strategy: str, node_size: int) -> None:
    assert_planned(MemoryRun("untied", strategy, ranks=4, tokens=256, node_size=node_size))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("strategy", ["no_shard", "shard_grad_op", "full_shard"])
def test_offload(strategy: str, dtype: str) -> None:
    assert_planned(MemoryRun("untied", strategy, dtype=dtype, ranks=2, tokens=256, offload=True))


_ROUNDING = 4096  # bytes that malloc may add to a piece


def test_the_meter_counts_what_torch_takes() -> None:
    _C.AllocationMeter.start()
    try:
        with pytest.raises(ValueError, match="meter is running"):
            _C.AllocationMeter.start()
        kept = torch.empty(1000)
        del (passing := [torch.empty(5000)])[:]
        assert 0 <= _C.AllocationMeter.held() - kept.nbytes < _ROUNDING and not passing
    finally:
        _C.AllocationMeter.stop()
    assert 0 <= _C.AllocationMeter.peak() - 4 * 6000 < 2 * _ROUNDING
    with pytest.raises(ValueError, match="not running"):
        _C.AllocationMeter.stop()
    again = torch.empty(77)  # freed after the meter: torch's own allocator is back
    assert 0 <= _C.AllocationMeter.held() - kept.nbytes < _ROUNDING and again.numel() == 77
