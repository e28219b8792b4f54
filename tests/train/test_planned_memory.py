"""The plan next to what the engine says it holds, and to what torch's allocator hands out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from engines import planned_bytes
from fastsft import _C
from memory_run import FAMILIES, MODELS, MemoryRun, measure

CELLS = list(zip(itertools.cycle(MODELS), itertools.product(
    ("no_shard", "shard_grad_op", "full_shard"), ("none", "gate_up", "block")
), strict=False))  # fmt: skip
ALONE = list(itertools.product(MODELS, ("none", "selective", "gate_up", "block")))


def assert_planned(run: MemoryRun, uneven: float = 0.0) -> None:
    """uneven: the share by which the state of a rank may be below that of the fullest, which is planned."""
    result = measure(run)
    held, parts = result["held"], result["plan"]["parts"]
    for name in ("parameters", "gradients"):
        assert held[name] == parts[name], name
    for name, planned in (("optimizer", "optimizer"), ("offloaded", "optimizer on the host")):
        assert (1 - uneven) * parts[planned] <= held[name] <= parts[planned], name
    assert held["buffers"] == parts["whole units"]
    buffers = ("activations", "labelled tokens", "logits", "products and sums")
    assert held["activations"] == sum(parts[name] for name in buffers)
    assert result["plan"]["peak"] == pytest.approx(result["measured"], rel=0.05)


@pytest.mark.covering
@pytest.mark.parametrize(("model", "recompute"), ALONE)
def test_one_rank(model: str, recompute: str) -> None:
    assert_planned(MemoryRun(model, recompute=recompute, tokens=256))


@pytest.mark.variants("float32-wide heads, narrow MLP-cell2")
@pytest.mark.parametrize(("model", "cell"), CELLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks(model: str, cell: tuple[str, str], dtype: str) -> None:
    """Each strategy and policy, the models in turn; the whole table is benchmarks/bench_memory_plan.py's."""
    strategy, recompute = cell
    assert_planned(MemoryRun(model, strategy, recompute, dtype, ranks=2, tokens=256))


@pytest.mark.parametrize("recompute", ["none", "gate_up", "block"])
@pytest.mark.parametrize("model", ["untied", "tied, grouped heads", "qwen3"])
def test_a_shared_context(model: str, recompute: str) -> None:
    """The rotation's angles are made for the longest row, which the plan counts, too."""
    tiles = 64 if recompute == "block" else 0
    assert_planned(
        MemoryRun(model, "full_shard", recompute, ranks=2, tokens=512, tile_tokens=tiles, context_ranks=2)
    )


@pytest.mark.variants("hybrid_shard-2-bfloat16")
@pytest.mark.parametrize(
    ("strategy", "node_size", "dtype", "grad_dtype"),
    [
        ("hybrid_shard", 1, "float32", "float32"),
        ("hybrid_shard", 2, "float32", "float32"),
        ("hybrid_shard", 2, "bfloat16", "bfloat16"),  # summed over copies through float32 ranges
        ("hybrid_shard_zero2", 2, "bfloat16", "float32"),
        ("hybrid_shard_zero2", 1, "float32", "bfloat16"),
    ],
)
def test_four_ranks_in_nodes(strategy: str, node_size: int, dtype: str, grad_dtype: str) -> None:
    run = MemoryRun("untied", strategy, "gate_up", dtype, 4, 256, node_size=node_size, grad_dtype=grad_dtype)
    assert_planned(run)


@pytest.mark.variants("[full_shard-3-0-float32-untied]", "[hybrid_shard-4-2-bfloat16-tied, grouped heads]")
@pytest.mark.parametrize("model", ["untied", "tied, grouped heads"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("strategy", "ranks", "node_size"),
    [
        ("no_shard", 2, 0),
        ("shard_grad_op", 2, 0),
        ("full_shard", 2, 0),
        ("full_shard", 3, 0),
        ("hybrid_shard", 4, 2),
        ("hybrid_shard_zero2", 2, 1),
    ],
)
def test_one_reduction_a_step(model: str, dtype: str, strategy: str, ranks: int, node_size: int) -> None:
    assert_planned(
        MemoryRun(model, strategy, "gate_up", dtype, ranks, 256, node_size=node_size, sync_each_batch=False)
    )


@pytest.mark.variants("full_shard")
@pytest.mark.parametrize(("strategy", "ranks"), [("shard_grad_op", 2), ("full_shard", 2)])
def test_one_reduction_a_step_of_adapters(strategy: str, ranks: int) -> None:
    assert_planned(MemoryRun("untied", strategy, ranks=ranks, tokens=256, rank=8, sync_each_batch=False))


@pytest.mark.variants("[float32-full_shard-2-untied]")
@pytest.mark.parametrize("model", ["untied", "tied, grouped heads"])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("shard_grad_op", 2), ("full_shard", 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_in_bfloat16(model: str, strategy: str, ranks: int, dtype: str) -> None:
    """Of one rank in bfloat16 products write them."""
    assert_planned(
        MemoryRun(model, strategy, "gate_up", dtype, ranks=ranks, tokens=256, grad_dtype="bfloat16")
    )


@pytest.mark.variants("full_shard-2-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("shard_grad_op", 2), ("full_shard", 2)])
def test_offload(strategy: str, ranks: int, dtype: str) -> None:
    """On the CPU, the host's bytes and the slots come from the same allocator."""
    assert_planned(MemoryRun("untied", strategy, dtype=dtype, ranks=ranks, tokens=256, offload=True))


@pytest.mark.variants("[False-no_shard-1-float32-adafactor]", "[True-shard_grad_op-2-bfloat16-adamw_8bit]")
@pytest.mark.parametrize("optimizer", [name for name in _C.optimizers() if name != "adamw"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("shard_grad_op", 2), ("full_shard", 3)])
@pytest.mark.parametrize("offload", [False, True])
def test_optimizers(strategy: str, ranks: int, dtype: str, optimizer: str, offload: bool) -> None:
    assert_planned(
        MemoryRun(
            "untied", strategy, dtype=dtype, ranks=ranks, tokens=256, optimizer=optimizer, offload=offload
        ),
        0.03 if ranks > 1 and optimizer == "adamw_8bit" else 0.0,
    )


@pytest.mark.variants("float32-untied-gate_up", "bfloat16-qwen3-block", "float32-gemma3-block")
@pytest.mark.parametrize("recompute", ["gate_up", "block"])
@pytest.mark.parametrize("model", ["untied", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiles(model: str, recompute: str, dtype: str) -> None:
    assert_planned(MemoryRun(model, recompute=recompute, dtype=dtype, tokens=1024, tile_tokens=200))


@pytest.mark.variants("full_shard-2-float32-200")
@pytest.mark.parametrize("tile_tokens", [0, 200])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("full_shard", 2)])
def test_offloaded_inputs(strategy: str, ranks: int, dtype: str, tile_tokens: int) -> None:
    """On the CPU the host's bytes come from the same allocator."""
    run = MemoryRun(
        "untied", strategy, "block", dtype, ranks, 1024, tile_tokens=tile_tokens, offload_inputs=True
    )
    assert_planned(run)


def test_no_shard_sums_bfloat16_gradients_in_whole_units() -> None:
    assert_planned(MemoryRun("untied", "no_shard", ranks=2, tokens=256, grad_dtype="bfloat16"))


@pytest.mark.variants("float32-gemma3", "bfloat16-qwen2")
@pytest.mark.parametrize("model", list(FAMILIES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_families(model: str, dtype: str) -> None:
    """Norms of query and key (qwen3) and of branches (Gemma), biases (qwen2), fused projections (phi3)."""
    assert_planned(MemoryRun(model, recompute="gate_up", dtype=dtype, tokens=512))


@pytest.mark.variants(
    "grouped heads-full_shard-2-float32", "gemma3-no_shard-1-float32", "phi3-no_shard-1-float32"
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [
        ("untied", "no_shard", 1),
        ("qwen3", "no_shard", 1),
        ("phi3", "no_shard", 1),
        ("gemma3", "no_shard", 1),
        ("qwen3_moe", "no_shard", 1),
        ("qwen3_moe", "full_shard", 2),
        ("tied, grouped heads", "shard_grad_op", 2),
        ("tied, grouped heads", "full_shard", 2),
        ("untied", "full_shard", 2),
    ],
)
def test_adapters(model: str, strategy: str, ranks: int, dtype: str) -> None:
    """The frozen model is there once, in the compute dtype, without gradients and moments."""
    run = MemoryRun(model, strategy, dtype=dtype, ranks=ranks, tokens=256, rank=8)
    assert_planned(run)
    full = MemoryRun(model, strategy, dtype=dtype, ranks=ranks, tokens=256)
    parts, whole = (
        planned_bytes(each.config(), world_size=ranks, **each.shared()).parts for each in (run, full)
    )
    trained = _C.count_trained_parameters(run.config(), adapters=run.adapters())
    every = _C.count_parameters(run.config(), adapters=run.adapters())
    assert parts["optimizer"] == pytest.approx(whole["optimizer"] * trained / (every - trained), rel=0.1)
    assert parts["parameters"] < 1.1 * whole["parameters"]


@pytest.mark.variants("full_shard-2-float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("shard_grad_op", 2), ("full_shard", 2)])
def test_a_base_model_in_4_bits(strategy: str, ranks: int, dtype: str) -> None:
    assert_planned(
        MemoryRun("untied", strategy, dtype=dtype, ranks=ranks, tokens=256, rank=8, frozen_dtype="nf4")
    )


@pytest.mark.variants("rowwise-no_shard-1-0", "tensorwise-full_shard-2-0")
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("full_shard", 2)])
@pytest.mark.parametrize("fp8", ["rowwise", "tensorwise"])
def test_linear_layers_of_8_bits(fp8: str, strategy: str, ranks: int, rank: int) -> None:
    """With adapters, too."""
    run = MemoryRun("untied", strategy, dtype="bfloat16", ranks=ranks, tokens=256, rank=rank, fp8=fp8)
    assert_planned(run)


@pytest.mark.variants("rowwise-no_shard-1-0", "rowwise-shard_grad_op-2-8")
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize(("strategy", "ranks"), [("no_shard", 1), ("shard_grad_op", 2)])
@pytest.mark.parametrize("fp8", ["rowwise", "tensorwise"])
def test_kept_weights_of_8_bits(fp8: str, strategy: str, ranks: int, rank: int) -> None:
    """A byte an element in forward, and one in backward."""
    run = MemoryRun(
        "untied",
        strategy,
        dtype="bfloat16",
        ranks=ranks,
        tokens=256,
        rank=rank,
        fp8=fp8,
        keep_fp8_weights=True,
    )
    assert_planned(run)
    made = replace(run, keep_fp8_weights=False)
    parts, before = (
        planned_bytes(each.config(), world_size=ranks, **each.shared()).parts for each in (run, made)
    )
    shapes = dict(_C.parameter_shapes(run.config()))
    linears = [
        shape for name, shape in shapes.items() if name.startswith("model.layers.") and len(shape) == 2
    ]
    matrices = sum(outputs * inputs for outputs, inputs in linears)
    assert parts["parameters"] - before["parameters"] == pytest.approx(2 * matrices, rel=0.03)


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
