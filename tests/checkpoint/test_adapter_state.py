"""Checkpoints of adapters hold what is trained, and go on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from adapted_models import AdaptedModel
from engines import train_step
from fastsft import _C
from peft_pairs import CASES, adapted_model, random_peft
from ranks import run_ranks

CASE = "qwen2, tied, biases of the adapted are trained"


@pytest.fixture(scope="module")
def subject() -> AdaptedModel:
    return adapted_model(random_peft(CASES[CASE]))


def go_on(subject: AdaptedModel, engine: _C.Engine, steps: int) -> list[tuple[float, float]]:
    results = []
    for step in range(steps):
        rows = np.arange(6)[engine.rank :: engine.world_size]
        result = train_step(
            engine, subject.dataset(), [rows], [subject.weights[rows]], learning_rate=1e-2, dropout_seed=step
        )
        results.append((result.loss, result.grad_norm))
    return results


def save_and_load(
    groups: dict[str, str], subject: AdaptedModel, folder: Path, options: dict[str, Any]
) -> tuple[list[str], list[int]]:
    first, second = (subject.engine(adapter_dropout=0.2, **options, **groups) for _ in range(2))
    go_on(subject, first, 2)
    _C.save_training_state(first, str(folder))
    if first.world_size > 1:
        torch.distributed.barrier()
    _C.load_training_state(second, str(folder))
    second.step_count = first.step_count
    assert go_on(subject, first, 2) == go_on(subject, second, 2)
    expected, found = first.named_parameters(), second.named_parameters()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    return first.unit_names, first.unit_sizes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_state_goes_on_bit_for_bit(tmp_path: Path, subject: AdaptedModel, dtype: str) -> None:
    ((units, sizes),) = run_ranks(1, save_and_load, subject, tmp_path, {"compute_dtype": dtype})
    (file,) = tmp_path.glob("optimizer-*.safetensors")
    with safe_open(file, "pt") as tensors:
        parts = ("master", "exp_avg", "exp_avg_sq")
        assert sorted(tensors.keys()) == sorted(f"{unit}.{part}" for unit in units for part in parts)
        assert [tensors.get_slice(f"{unit}.master").get_shape()[0] for unit in units] == sizes


@pytest.mark.parametrize("strategy", ["full_shard", "shard_grad_op"])
def test_two_ranks(tmp_path: Path, subject: AdaptedModel, strategy: str) -> None:
    run_ranks(2, save_and_load, subject, tmp_path, {"strategy": strategy})


def test_another_rank_is_another_model(tmp_path: Path, subject: AdaptedModel) -> None:
    _C.save_training_state(subject.engine(), str(tmp_path))
    module, rank, scale = subject.linears[0]
    wider = _C.AdapterOptions(linears=[_C.AdapterLinear(module, rank=rank + 1, scale=scale)])
    with pytest.raises(ValueError, match="it was saved from a"):
        _C.load_training_state(_C.Engine(subject.config_json, adapters=wider), str(tmp_path))


def test_the_model_is_loaded_next_to_adapters(tmp_path: Path, subject: AdaptedModel) -> None:
    engine = subject.engine()
    base = {name: value for name, value in subject.parameters.items() if ".lora_" not in name}
    save_file({name: value + 1 for name, value in base.items()}, tmp_path / "model.safetensors")
    assert _C.load_model(engine, str(tmp_path)) == []
    for name, value in engine.named_parameters().items():
        assert torch.equal(value, base[name] + 1 if name in base else subject.parameters[name]), name
