"""The engine on a GPU computes what it computes on the CPU, without asking the device inside a step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from e2e.command_line import start
from e2e.test_golden_runs import RUNS, WHOLE, assert_run, flags_of
from engines import new_engine
from fastsft import _C
from runs import random_dataset

pytestmark = pytest.mark.cuda


@dataclass(frozen=True)
class Sizes:
    vocab: int
    hidden: int
    rows: int
    longest: int


@cache
def sizes() -> Sizes:
    """Small ones for the device of tests/fake_device, whose kernels run on the host."""
    if torch.cuda.get_device_name().startswith("Fake"):
        return Sizes(vocab=96, hidden=32, rows=6, longest=20)
    return Sizes(vocab=512, hidden=256, rows=24, longest=300)


def config(tied: bool) -> str:
    hidden = sizes().hidden
    return json.dumps(
        {
            "model_type": "llama", "vocab_size": sizes().vocab, "hidden_size": hidden,
            "intermediate_size": 2 * hidden, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": hidden // 4, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": tied,
        }
    )  # fmt: skip


def engine_on(device: str, tied: bool = False, **options: Any) -> Any:
    engine = new_engine(config(tied), device=device, **options)
    generator = torch.Generator().manual_seed(1)
    for name, shape in engine.parameter_shapes.items():
        noise = torch.randn(shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if len(shape) == 1 else 0.05 * noise)
    engine.publish()
    return engine


def dataset_of_rows() -> _C.TokenDataset:
    return random_dataset(sizes().rows, sizes().vocab, sizes().longest)


def steps(engine: Any, count: int) -> list[Any]:
    dataset, results = dataset_of_rows(), []
    halves = np.array_split(np.arange(sizes().rows), 3)
    weights = [np.full(len(half), 1 / dataset.target_counts().sum()) for half in halves]
    for _ in range(count):
        engine.begin_step(dataset, halves, weights, learning_rate=2e-3, weight_decay=0.1, max_grad_norm=1.0)
        results += engine.take_results(all=False)
    return results + engine.take_results(all=True)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("recompute", ["selective", "gate_up", "block"])
def test_the_fp32_curve_is_that_of_the_cpu(tied: bool, recompute: str) -> None:
    ours, expected = (steps(engine_on(d, tied, recompute=recompute), 6) for d in ("cuda:0", "cpu"))
    for gpu, cpu in zip(ours, expected, strict=True):
        assert gpu.finite
        assert gpu.loss == pytest.approx(cpu.loss, abs=1e-5)
        assert gpu.grad_norm == pytest.approx(cpu.grad_norm, rel=1e-4)


def test_gradients_are_those_of_the_cpu() -> None:
    dataset, rows = dataset_of_rows(), np.arange(sizes().rows)
    weights = np.full(len(rows), 1 / 500)
    (loss, ours), (wanted, expected) = (
        engine_on(device).gradients(dataset, rows, weights) for device in ("cuda:0", "cpu")
    )
    assert loss == pytest.approx(wanted, abs=1e-5)
    for name, tensor in expected.items():
        assert ((ours[name] - tensor).norm() / tensor.norm()).item() <= 1e-5, name


@pytest.mark.parametrize("frozen_dtype", ["compute", "nf4"])
def test_adapters_train_as_on_the_cpu(frozen_dtype: str) -> None:
    names = ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"]
    modules = [f"model.layers.{layer}.{name}" for layer in range(3) for name in names]
    linears = [_C.AdapterLinear(module, rank=4, scale=2.0) for module in modules]
    options = {"adapters": _C.AdapterOptions(linears=linears), "frozen_dtype": frozen_dtype}
    engines = [engine_on(device, **options) for device in ("cuda:0", "cpu")]
    for gpu, cpu in zip(*(steps(engine, 4) for engine in engines), strict=True):
        assert gpu.finite
        assert gpu.loss == pytest.approx(cpu.loss, abs=1e-5)
        assert gpu.grad_norm == pytest.approx(cpu.grad_norm, rel=1e-4)
    held, expected = (engine.named_parameters() for engine in engines)
    for name, value in expected.items():
        if name not in engines[0].trained_shapes:
            assert torch.equal(held[name], value), name


def test_the_bf16_curve_stays_near_fp32() -> None:
    narrow, wide = (steps(engine_on("cuda:0", compute_dtype=d), 10) for d in ("bfloat16", "float32"))
    for a, b in zip(narrow, wide, strict=True):
        assert a.finite and a.loss == pytest.approx(b.loss, abs=2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tuned_products_keep_the_curve_and_their_table_gives_its_bits(dtype: str) -> None:
    options = {"compute_dtype": dtype}
    if dtype == "bfloat16":
        options |= {"master_dtype": "split", "grad_dtype": "bfloat16", "optim_dtype": "bfloat16"}
    plain = steps(engine_on("cuda:0", **options), 5)
    tuned, dataset = engine_on("cuda:0", **options), dataset_of_rows()
    torch.use_deterministic_algorithms(True)
    try:
        for rows in np.array_split(np.arange(sizes().rows), 3):
            tuned.tune_gemms(dataset, rows, np.full(len(rows), 1e-3))
        table = _C.tuned_gemms()
        assert len(json.loads(table)) >= 12
        curves = [steps(tuned, 5)]
        _C.set_tuned_gemms("[]")
        _C.set_tuned_gemms(table)
        curves.append(steps(engine_on("cuda:0", **options), 5))
    finally:
        torch.use_deterministic_algorithms(False)
        _C.set_tuned_gemms("[]")
    first, second = ([(r.loss, r.grad_norm) for r in curve] for curve in curves)
    assert first == second
    for ours, expected in zip(curves[0], plain, strict=True):
        assert ours.loss == pytest.approx(expected.loss, abs=1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_run_twice_has_the_same_bits(dtype: str) -> None:
    """In bfloat16 as `--full_determinism True` sets it: flash adds in any order otherwise."""
    engines = [engine_on("cuda:0", compute_dtype=dtype) for _ in range(2)]
    torch.use_deterministic_algorithms(True)
    try:
        losses = [[(r.loss, r.grad_norm) for r in steps(engine, 5)] for engine in engines]
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses[0] == losses[1]
    first, second = (engine.named_parameters() for engine in engines)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_step_does_not_wait_for_the_device() -> None:
    """torch raises for what it knows to wait: item(), copies of pageable memory, nonzero."""
    engine = engine_on("cuda:0", compute_dtype="bfloat16")
    steps(engine, 3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps(engine, 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_timeline_shows_no_wait_inside_a_step_and_overlapping_uploads() -> None:
    engine = engine_on("cuda:0", compute_dtype="bfloat16")
    steps(engine, 3)
    engine.start_trace(capacity=100_000)
    steps(engine, 3)
    spans = engine.stop_trace()
    inside = [s for s in spans if s.track == "host" and s.name == "step"]
    waits = [s for s in spans if s.track == "host" and s.name.startswith("synchronize")]
    assert inside and not [w for w in waits for s in inside if s.began < w.began < s.ended]
    assert all(s.end_ns >= s.begin_ns for s in spans)


def test_memory_is_flat_after_the_first_steps() -> None:
    engine = engine_on("cuda:0", compute_dtype="bfloat16")
    steps(engine, 3)
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    steps(engine, 10)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before and torch.cuda.memory_reserved() == reserved


def test_a_bad_step_changes_nothing() -> None:
    engine = engine_on("cuda:0")
    broken = engine.named_parameters()["model.norm.weight"]
    broken[0] = torch.nan
    engine.set_parameter("model.norm.weight", broken)
    engine.publish()
    before = engine.named_parameters()
    (result,) = steps(engine, 1)
    assert not result.finite and engine.step_count == 0
    after = engine.named_parameters()
    assert all(torch.equal(after[n].nan_to_num(), t.nan_to_num()) for n, t in before.items())


def test_checkpoints_pass_between_devices(tmp_path: Path) -> None:
    gpu = engine_on("cuda:0")
    steps(gpu, 2)
    _C.save_training_state(gpu, str(tmp_path))
    cpu = engine_on("cpu")
    _C.load_training_state(cpu, str(tmp_path))
    expected, loaded = gpu.named_parameters(), cpu.named_parameters()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())


def test_logits_come_to_the_host() -> None:
    ids, lengths = np.arange(40) % sizes().vocab, np.array([15, 25])
    ours, expected = (engine_on(device).logits(ids, lengths) for device in ("cuda:0", "cpu"))
    assert ours.device.type == "cpu"
    assert ((ours - expected).norm() / expected.norm()).item() <= 1e-5


@pytest.mark.parametrize("name", [name for name in WHOLE if RUNS[name]["world_size"] == 1])
def test_recorded_run_of_fastchat(name: str, tmp_path: Path) -> None:
    flags = {**flags_of(name), "use_cpu": False, "no_cuda": False}
    start(flags, tmp_path / "out")
    assert_run(tmp_path / "out", RUNS[name])
