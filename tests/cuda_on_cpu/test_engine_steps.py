"""Whole steps of an engine through the CUDA kernels have the losses of the engine's CPU ops."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from cuda_on_cpu import build
from cuda_on_cpu.emulation import Order, emulation
from engines import new_engine
from fastsft import _C
from runs import random_dataset

VOCAB, ROWS, STEPS = 71, 4, 2
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 24, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 7},
    "gemma2": {"head_dim": 24, "sliding_window": 7, "attn_logit_softcapping": 2.0},
    "qwen3_moe": {
        "head_dim": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {"head_dim": 24, "sliding_window": 7, "sliding_window_pattern": 2},
}
# Kernels that a step of any of them must go through: attention, norms, loss, optimizer.
NEEDED = (
    "forward_kernel",
    "query_kernel",
    "key_kernel",
    "cross_entropy_kernel",
    "adamw_kernel",
    "total_kernel",
)


@pytest.fixture(autouse=True, scope="module")
def needs_a_compiler() -> None:
    if reason := build.missing():
        pytest.skip(reason)


def config(family: str, intermediate: int) -> str:
    return json.dumps(
        {
            "model_type": family, "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": intermediate,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
            **MODELS[family],
        }
    )  # fmt: skip


def losses(family: str, dtype: str, intermediate: int = 104, **options: Any) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step."""
    engine, dataset = (
        new_engine(config(family, intermediate), compute_dtype=dtype, **options),
        random_dataset(ROWS, VOCAB, 50),
    )
    generator = torch.Generator().manual_seed(1)
    for name, shape in engine.parameter_shapes.items():
        noise = torch.randn(shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if len(shape) == 1 else 0.1 * noise)
    engine.publish()
    parts, results = np.array_split(np.arange(ROWS), 2), []
    weights = [np.full(len(part), 1 / dataset.target_counts().sum()) for part in parts]
    for _ in range(STEPS):
        engine.begin_step(dataset, parts, weights, learning_rate=5e-3, weight_decay=0.1, max_grad_norm=1.0)
        results += engine.take_results(all=True)
    assert all(result.finite for result in results)
    return [(result.loss, result.grad_norm) for result in results]


@pytest.mark.covering
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize(
    "dtype, limit, options",
    [
        ("float32", 1e-5, {}),
        ("bfloat16", 5e-3, {"master_dtype": "split", "optim_dtype": "bfloat16", "grad_dtype": "bfloat16"}),
        ("float16", 2e-3, {}),
    ],
    ids=["float32", "bfloat16", "float16"],
)
def test_losses_are_those_of_the_cpu(family: str, dtype: str, limit: float, options: dict[str, Any]) -> None:
    expected = losses(family, dtype, **options)
    emulated = emulation()
    emulated.schedule(Order.WARP_AHEAD_RANDOM, seed=3)
    before = {(i.file, i.name): i.launches for i in emulated.instances()}
    with emulated.instead_of_cpu_ops():
        ours = losses(family, dtype, **options)
    ran = {i.name for i in emulated.instances() if i.launches > before[i.file, i.name]}
    assert [name for name in NEEDED if not any(each.startswith(name) for each in ran)] == []
    for (loss, norm), (wanted, wanted_norm) in zip(ours, expected, strict=True):
        assert loss == pytest.approx(wanted, abs=limit)
        assert norm == pytest.approx(wanted_norm, rel=1e-4 if dtype == "float32" else 3e-2)
    assert ours != expected, "the CPU's own ops ran"


@pytest.mark.parametrize("wgrad", [False, True])
@pytest.mark.parametrize(("fp8", "form"), [("rowwise", "e4m3"), ("tensorwise", "hybrid")])
def test_linear_layers_of_8_bits(fp8: str, form: str, wgrad: bool) -> None:
    options = {"intermediate": 112, "fp8": fp8, "fp8_format": form, "fp8_wgrad": wgrad}
    expected, emulated = losses("llama", "bfloat16", **options), emulation()
    emulated.schedule(Order.WARP_AHEAD_RANDOM, seed=3)
    with emulated.instead_of_cpu_ops():
        ours = losses("llama", "bfloat16", **options)
    ran = {i.name for i in emulated.instances() if i.launches and i.file == "ops/fp8/fp8_cuda.cu"}
    assert any(name.startswith("rows_kernel") for name in ran) and len(ran) > 2
    if wgrad and fp8 == "rowwise":
        assert any(name.startswith("column_amax_kernel") for name in ran)
    for (loss, norm), (wanted, wanted_norm) in zip(ours, expected, strict=True):
        assert loss == pytest.approx(wanted, abs=0.02)
        assert norm == pytest.approx(wanted_norm, rel=3e-2)
    assert ours != losses("llama", "bfloat16", intermediate=112), "nothing was in 8 bits"


LINEARS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


@pytest.mark.covering
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("recompute", _C.recompute_policies())
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_backward_has_what_norms_and_swiglu_quantise(
    family: str, recompute: str, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's ops write results in 16 bits, too; the kernels write them only if something reads them."""
    monkeypatch.setitem(MODELS, "gemma2", {**MODELS["gemma2"], "head_dim": 32})
    options: dict[str, Any] = {"intermediate": 112, "fp8": "rowwise", "recompute": recompute}
    if lora:
        names = [f"model.layers.{layer}.{linear}" for layer in range(2) for linear in LINEARS]
        linears = [_C.AdapterLinear(name, rank=4, scale=2.0) for name in names]
        options["adapters"] = _C.AdapterOptions(linears=linears)
    expected, emulated = losses(family, "bfloat16", **options), emulation()
    emulated.schedule(Order.WARP_AHEAD_RANDOM, seed=3)
    before = {(i.file, i.name): i.launches for i in emulated.instances()}
    with emulated.instead_of_cpu_ops():
        ours = losses(family, "bfloat16", **options)
        all_kept = losses(family, "bfloat16", **{**options, "recompute": "none"})
    ran = {i.name for i in emulated.instances() if i.launches > before[i.file, i.name]}
    assert any(name.startswith("forward_kernel<true") for name in ran), ran
    assert any(name.startswith("fp8_forward_kernel") for name in ran), ran
    assert ours == all_kept
    for (loss, norm), (wanted, wanted_norm) in zip(ours, expected, strict=True):
        assert loss == pytest.approx(wanted, abs=0.02)
        assert norm == pytest.approx(wanted_norm, rel=3e-2)
