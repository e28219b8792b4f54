"""The pool takes the bytes that the memory plan sums: both read one table of buffers."""

from __future__ import annotations

import json

import pytest
import torch

from engines import new_engine, planned_bytes, train_step
from fastsft import _C
from memory_run import FAMILIES, MODELS
from runs import random_dataset

CONFIGS = {**MODELS, **FAMILIES}
PARTS = ("activations", "labelled tokens", "logits", "products and sums")
TOKENS, LABELS, LONGEST = 96, 40, 64
SIZES = {"micro_batch": (TOKENS, LABELS, LONGEST), "step": (TOKENS, LABELS, 1)}


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("recompute", _C.recompute_policies())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile_tokens", [0, 20])
def test_what_is_reserved_is_what_is_planned(
    model: str, recompute: str, dtype: str, tile_tokens: int
) -> None:
    config = json.dumps({**CONFIGS[model], "num_hidden_layers": 3})
    shared = {"recompute": recompute, "compute_dtype": dtype, "tile_tokens": tile_tokens}
    if tile_tokens and not _C.takes_tiles(config):
        for refused in (new_engine, lambda *args, **options: planned_bytes(*args, **SIZES, **options)):
            with pytest.raises(ValueError, match="tile_tokens is 20, and a mixture of experts computes all"):
                refused(config, **shared)
        return
    engine = new_engine(config, **shared)
    assert engine.memory()["activations"] == 0
    engine.reserve(**SIZES)
    options = {**shared, "threads": torch.get_num_threads()}
    plan = planned_bytes(config, **SIZES, **options)
    assert engine.memory()["activations"] == sum(plan.parts[part] for part in PARTS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_inputs_leave_three_hidden_states(dtype: str) -> None:
    config = json.dumps({**CONFIGS["qwen3"], "num_hidden_layers": 7})
    shared = {"recompute": "block", "compute_dtype": dtype}
    kept, offloaded = (
        planned_bytes(config, **SIZES, **shared, offload_inputs=offload) for offload in (False, True)
    )
    hidden = TOKENS * CONFIGS["qwen3"]["hidden_size"] * (4 if dtype == "float32" else 2)
    assert kept.parts["activations"] - offloaded.parts["activations"] == (8 - 3) * hidden
    assert offloaded.parts["inputs on the host"] == 5 * hidden and kept.parts["inputs on the host"] == 0
    engine = new_engine(config, **shared, offload_inputs=True)
    engine.reserve(**SIZES)
    assert engine.memory()["inputs on the host"] == 5 * hidden
    on_gpu = planned_bytes(config, **SIZES, **shared, offload_inputs=True, on_cpu=False)
    without = planned_bytes(config, **SIZES, **shared, on_cpu=False)
    assert on_gpu.host - without.host == 5 * hidden and on_gpu.parts["inputs on the host"] == 0


@pytest.mark.parametrize("recompute", _C.recompute_policies())
def test_an_evaluation_computes_in_memory_that_training_has(recompute: str) -> None:
    config = json.dumps({**CONFIGS["qwen3"], "num_hidden_layers": 3})
    engine = new_engine(config, recompute=recompute)
    dataset = random_dataset(4, 1000, 40)
    rows, weights = [0, 1], [0.1, 0.1]
    train_step(engine, dataset, [rows], [weights], learning_rate=0.0)
    held = engine.memory()["activations"]
    assert held > 0
    engine.loss(dataset, rows, weights)
    assert engine.memory()["activations"] == held


@pytest.mark.parametrize("recompute", _C.recompute_policies())
@pytest.mark.parametrize("fp8", ["rowwise", "tensorwise"])
def test_operands_of_8_bits_are_reserved(fp8: str, recompute: str) -> None:
    """Of the widest layer and the largest matrix: phi3's gate and up projection, in both passes."""
    config = json.dumps({**CONFIGS["phi3"], "num_hidden_layers": 3})
    options = {"recompute": recompute, "compute_dtype": "bfloat16", "threads": torch.get_num_threads()}
    plan = planned_bytes(config, **SIZES, **options, fp8=fp8)
    without = planned_bytes(config, **SIZES, **options)
    hidden, outputs = CONFIGS["phi3"]["hidden_size"], 2 * CONFIGS["phi3"]["intermediate_size"]
    operands = TOKENS * outputs + 4 * TOKENS + hidden * outputs + 4 * outputs
    assert plan.parts["activations"] - without.parts["activations"] == operands
    kept = planned_bytes(config, **SIZES, **options, fp8=fp8, keep_fp8_weights=True)
    assert plan.parts["activations"] - kept.parts["activations"] == hidden * outputs + 4 * outputs
    engine = new_engine(config, recompute=recompute, compute_dtype="bfloat16", fp8=fp8)
    engine.reserve(**SIZES)
    assert engine.memory()["activations"] == sum(plan.parts[part] for part in PARTS)


@pytest.mark.parametrize("fp8", ["rowwise", "tensorwise"])
def test_operands_of_weight_gradients_of_8_bits_are_reserved(fp8: str) -> None:
    """Transposed: output gradients in the memory of rows, inputs in their own, of the widest input."""
    config = json.dumps({**CONFIGS["phi3"], "num_hidden_layers": 3})
    options = {"compute_dtype": "bfloat16", "threads": torch.get_num_threads(), "fp8": fp8}
    plan = planned_bytes(config, **SIZES, **options, fp8_wgrad=True)
    without = planned_bytes(config, **SIZES, **options)
    inner = CONFIGS["phi3"]["intermediate_size"]
    padded = (TOKENS + 15) // 16 * 16
    rows = (padded - TOKENS) * 2 * inner + 4 * (max(padded, 2 * inner) - TOKENS)
    columns = padded * inner + 4 * inner
    assert plan.parts["activations"] - without.parts["activations"] == rows + columns
    adapters = _C.AdapterOptions(
        linears=[_C.AdapterLinear("model.layers.1.mlp.down_proj", rank=4, scale=1.0)]
    )
    plan_of_frozen, frozen = (
        planned_bytes(config, **SIZES, **options, adapters=adapters, fp8_wgrad=wgrad)
        for wgrad in (True, False)
    )
    assert plan_of_frozen.parts == frozen.parts
    engine = new_engine(config, compute_dtype="bfloat16", fp8=fp8, fp8_wgrad=True)
    engine.reserve(**SIZES)
    assert engine.memory()["activations"] == sum(plan.parts[part] for part in PARTS)
