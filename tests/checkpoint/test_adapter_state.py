"""Checkpoints of adapters hold what is trained, and go on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engines import train_step
from fastsft import _C
from peft_pairs import CASES, PeftPair
from ranks import run_ranks

CASE = "qwen2, tied, biases of the adapted are trained"


def go_on(pair: PeftPair, steps: int) -> list[tuple[float, float]]:
    results = []
    for step in range(steps):
        rows = np.arange(6)[pair.engine.rank :: pair.engine.world_size]
        result = train_step(
            pair.engine, pair.dataset, [rows], [pair.weights[rows]], learning_rate=1e-2, dropout_seed=step
        )
        results.append((result.loss, result.grad_norm))
    return results


def save_and_load(groups: dict[str, str], folder: Path, strategy: str, dtype: str) -> dict[str, Any]:
    options: dict[str, Any] = {"strategy": strategy, "compute_dtype": dtype, "adapters_dropout": 0.2}
    first, second = (PeftPair(CASES[CASE], groups, **options) for _ in range(2))
    go_on(first, 2)
    _C.save_training_state(first.engine, str(folder))
    if first.engine.world_size > 1:
        torch.distributed.barrier()
    _C.load_training_state(second.engine, str(folder))
    second.engine.step_count = first.engine.step_count
    assert go_on(first, 2) == go_on(second, 2)
    expected, found = first.engine.named_parameters(), second.engine.named_parameters()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    return {"units": first.engine.unit_names, "sizes": first.engine.unit_sizes}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_state_goes_on_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    (alone,) = run_ranks(1, save_and_load, tmp_path, "no_shard", dtype)
    (file,) = tmp_path.glob("optimizer-*.safetensors")
    with safe_open(file, "pt") as tensors:
        names = tensors.keys()
        assert sorted(names) == sorted(
            f"{unit}.{part}" for unit in alone["units"] for part in ("master", "exp_avg", "exp_avg_sq")
        )
        sizes = [tensors.get_slice(f"{unit}.master").get_shape()[0] for unit in alone["units"]]
    assert sizes == alone["sizes"]


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op"])
def test_two_ranks(tmp_path: Path, strategy: str) -> None:
    run_ranks(2, save_and_load, tmp_path, strategy, "float32")


def test_the_model_is_loaded_next_to_adapters(tmp_path: Path) -> None:
    pair = PeftPair(CASES[CASE])
    base = {
        name: value for name, value in pair.engine.named_parameters().items() if ".lora_" not in name
    }
    save_file({name: value + 1 for name, value in base.items()}, tmp_path / "model.safetensors")
    adapters = pair.engine.trained_parameters()
    assert _C.load_model(pair.engine, str(tmp_path)) == []
    for name, value in pair.engine.named_parameters().items():
        assert torch.equal(value, base[name] + 1 if name in base else adapters[name]), name
