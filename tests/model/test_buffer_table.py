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
def test_what_is_reserved_is_what_is_planned(model: str, recompute: str, dtype: str) -> None:
    config = json.dumps({**CONFIGS[model], "num_hidden_layers": 3})
    engine = new_engine(config, recompute=recompute, compute_dtype=dtype)
    assert engine.memory()["activations"] == 0
    engine.reserve(**SIZES)
    options = {"recompute": recompute, "compute_dtype": dtype, "threads": torch.get_num_threads()}
    plan = planned_bytes(config, **SIZES, **options)
    assert engine.memory()["activations"] == sum(plan.parts[part] for part in PARTS)


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
