"""bench_step.py on a tiny model: it runs, and counts FLOPs as it says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import bench_step


@pytest.mark.parametrize("workload", ["W1", "W2"])
def test_a_tiny_model_on_the_cpu(workload: str, tmp_path: Path) -> None:
    flags = {
        "model": "tiny", "workload": workload, "device": "cpu", "rows": 6, "longest": 64, "warm_up": 1,
        "micro_batch_tokens": 128, "steps": 1, "repeats": 1, "grad_dtype": "bfloat16",
        "profile": tmp_path / "trace.json", "out": tmp_path / "record.json",
    }  # fmt: skip
    bench_step.main([word for name, value in flags.items() for word in (f"--{name}", str(value))])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["finite"] and record["tokens_per_second"] > 0 and record["micro_batches"] > 1
    assert (record["compute_dtype"], record["grad_dtype"]) == ("bfloat16", "bfloat16")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_linear_layers_in_8_bits(tmp_path: Path) -> None:
    """The flags of training, and their defaults; other losses than without."""
    losses, out = {}, tmp_path / "record.json"
    words = "--model tiny --device cpu --rows 2 --longest 16 --warm_up 0 --steps 1 --repeats 1 --out"
    for flags in ("", "--fp8 tensorwise", "--fp8 rowwise --num_layers_at_end_in_bf16 1"):
        record = bench_step.main([*words.split(), str(out), *flags.split()])
        losses[flags] = record["loss"]
        assert record["finite"] and (record["fp8"] == {}) == (not flags)
    assert len(set(losses.values())) == 3
    assert record["fp8"]["fp8_format"] == "e4m3" and record["fp8"]["num_layers_at_end_in_bf16"] == 1
    with pytest.raises(ValueError, match="--fp8_format hybrid is for --fp8"):
        bench_step.main([*words.split(), str(out), "--fp8_format", "hybrid"])


def test_a_step_that_is_not_finite_voids_the_timing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_numbers(engine: Any, device: str) -> None:
        for name, shape in engine.parameter_shapes.items():
            engine.set_parameter(name, torch.full(shape, math.nan, device=device))
        engine.publish()

    monkeypatch.setattr(bench_step, "initialise", without_numbers)
    command = "--model tiny --device cpu --rows 2 --longest 16 --warm_up 0 --steps 1 --repeats 1 --out"
    with pytest.raises(SystemExit, match="the timing is void"):
        bench_step.main([*command.split(), str(tmp_path / "record.json")])


@pytest.mark.parametrize("length, gflop", [(1024, 40.4), (2048, 41.3), (8192, 46.1)])
def test_flops_of_vicuna_7b(length: int, gflop: float) -> None:
    """By hand: 39.6 GFLOP a token of matrices, and attention counted at half."""
    config = {"num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 32}
    block = {"qkv": [3 * 4096, 4096], "o": [4096, 4096], "gate_up": [22016, 4096], "down": [4096, 11008]}
    shapes = {f"{layer}.{name}": shape for layer in range(32) for name, shape in block.items()}
    shapes |= {"model.embed_tokens.weight": [32000, 4096], "lm_head.weight": [32000, 4096]}
    flops = bench_step.step_flops(config, shapes, [length]) / length
    assert flops / 1e9 == pytest.approx(gflop, abs=0.06)
