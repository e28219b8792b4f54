"""8-bit linear layers on the fake device: the CPU's curves, the planned bytes, counted bytes and FLOPs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_device.running import FakeDevice, run_program
from fake_device.test_counts import CONFIG, LONG, SHORT, Counts, case, of_tokens
from fake_device.test_counts import Count as Numbers
from fastsft.planning.layer_traffic import FP8_KERNELS_PER_LAYER, Widths, fp8_traffic

FakeDevices = Callable[..., FakeDevice]

SCALINGS = ("rowwise", "tensorwise")
# Sizes are multiples of 16, and no two widths are equal.
FP8_CONFIG = {**CONFIG, "intermediate_size": 112}
CURVES: dict[str, dict[str, Any]] = {
    "rowwise": {"fp8": "rowwise", "fp8_format": "e4m3"},
    "tensorwise": {"fp8": "tensorwise", "fp8_format": "hybrid"},
    "rowwise, wgrad": {"fp8": "rowwise", "fp8_format": "e4m3", "fp8_wgrad": True},
    "tensorwise, wgrad": {"fp8": "tensorwise", "fp8_format": "hybrid", "fp8_wgrad": True},
    "rowwise, kept": {"fp8": "rowwise", "fp8_format": "e4m3", "keep_fp8_weights": True},
    "rowwise, one block": {"fp8": "rowwise", "num_layers_at_start_in_bf16": 1, "recompute": "block"},
}


@pytest.mark.timeout(900)
def test_losses_are_those_of_the_cpu(fake_device: FakeDevices) -> None:
    """As far as values of 8 bits let them, which last bits of bfloat16 move by a step."""
    words = json.dumps(CURVES)
    (expected,) = run_program(None, "fp8_steps", "cpu", words)
    device = fake_device(schedule="mixed", seed=2, races=True)
    (ours,) = run_program(device, "fp8_steps", "cuda", words)
    device.check()
    for name in CURVES:
        assert ours[name]["losses"] == pytest.approx(expected[name]["losses"], abs=0.02), name
        assert ours[name]["norms"] == pytest.approx(expected[name]["norms"], rel=5e-2), name


def test_the_plan_is_what_is_allocated(fake_device: FakeDevices) -> None:
    (found,) = run_program(fake_device(), "fp8_steps", "memory", json.dumps(CURVES))
    for name, (planned, allocated) in found.items():
        assert allocated == pytest.approx(planned, rel=0.02), name


OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    **{scaling: {"fp8": scaling} for scaling in SCALINGS},
    **{f"{scaling} wgrad": {"fp8": scaling, "fp8_wgrad": True} for scaling in SCALINGS},
}
CASES = {
    f"{name} {tokens}": {
        **case(2, [tokens], **options),
        "config": {**FP8_CONFIG, "num_hidden_layers": 2},
    }
    for name, options in OPTIONS.items()
    for tokens in (SHORT, LONG)
}

# Norms and SwiGLU quantise their results, which only some policies need in 16 bits, too.
POLICIES = ("selective", "gate_up", "block")
for _policy in POLICIES:
    for _name, _options in {"bfloat16": {}, "rowwise": {"fp8": "rowwise"}}.items():
        for _tokens in (SHORT, LONG):
            _case = case(2, [_tokens], recompute=_policy, **_options)
            CASES[f"{_name} {_policy} {_tokens}"] = _case | {"config": {**FP8_CONFIG, "num_hidden_layers": 2}}

# Two micro-batches of a step that is not the first.
for _name in SCALINGS:
    for _kept in (False, True):
        _case = case(2, [SHORT, SHORT], 1, fp8=_name, recompute="block", keep_fp8_weights=_kept)
        CASES[f"{_name}, kept {_kept}"] = _case | {"config": {**FP8_CONFIG, "num_hidden_layers": 2}}
        _linears = {"adapters": ["model.layers.1.mlp.down_proj"]}
        CASES[f"{_name}, frozen, kept {_kept}"] = CASES[f"{_name}, kept {_kept}"] | _linears


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counts]:
    device = FakeDevice(tmp_path_factory.mktemp("reports") / "counts", counts=True)
    (found,) = run_program(device, "counted_steps", json.dumps(CASES))
    device.check()
    return {name: {key: Numbers(*numbers) for key, numbers in rows.items()} for name, rows in found.items()}


def bytes_of(counts: Counts, files: Sequence[str] = ("fp8_cuda",)) -> int:
    """Return the bytes that the kernels of these files read and write."""
    found = (count for name, count in counts.items() if any(file in name for file in files))
    return sum(count.read + count.written for count in found)


def quantised_per_token(counts: dict[str, Counts], name: str, base: str) -> float:
    """Return the bytes per token that case `name` moves beyond case `base`, without products."""
    files = ("fp8_cuda", "rms_norm_cuda", "swiglu_cuda")
    ours, others = (bytes_of(of_tokens(counts, each), files) for each in (name, base))
    return (ours - others) / (LONG - SHORT)


def in_8_bits(counts: Counts) -> int:
    """Return the FLOPs of products of 8 bits."""
    return sum(count.flops for name, count in counts.items() if "fp8 product" in name)


@pytest.mark.parametrize("wgrad", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_quantising_moves_the_bytes_of_the_time_model(
    scaling: str, wgrad: bool, counts: dict[str, Counts]
) -> None:
    """Of two layers. What largest magnitudes take beside the matrices is not in the model."""
    traffic, name = fp8_traffic(Widths.of(FP8_CONFIG), scaling, wgrad=wgrad), scaling + " wgrad" * wgrad
    per_token = quantised_per_token(counts, name, "bfloat16")
    assert per_token == pytest.approx(2 * traffic.token, rel=0.05 if wgrad else 0.01)
    if wgrad:
        return
    weights = bytes_of(counts[f"{name} {SHORT}"]) - SHORT * bytes_of(of_tokens(counts, name)) / (LONG - SHORT)
    assert weights == pytest.approx(2 * traffic.micro_batch, rel=0.03)


@pytest.mark.parametrize("policy", POLICIES)
def test_norms_and_swiglu_move_the_bytes_of_the_time_model(policy: str, counts: dict[str, Counts]) -> None:
    traffic = fp8_traffic(Widths.of(FP8_CONFIG), "rowwise", policy)
    per_token = quantised_per_token(counts, f"rowwise {policy}", f"bfloat16 {policy}")
    assert per_token == pytest.approx(2 * traffic.token, rel=0.01)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_two_products_of_three_are_of_8_bits(scaling: str, counts: dict[str, Counts]) -> None:
    """Of the blocks: outputs and input gradients. Weight gradients and the head are not."""
    hidden, inner, query, key, _, _ = Widths.of(FP8_CONFIG)
    block = hidden * (query + 2 * key) + query * hidden + 3 * hidden * inner
    head = hidden * FP8_CONFIG["vocab_size"]
    found = of_tokens(counts, scaling)
    others = sum(count.flops for name, count in found.items() if "operation product" in name)
    assert in_8_bits(found) == (LONG - SHORT) * 2 * 4 * block
    assert others == (LONG - SHORT) * (2 * 2 * block + 6 * head)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_all_products_of_blocks_are_of_8_bits_with_wgrad(scaling: str, counts: dict[str, Counts]) -> None:
    hidden, inner, query, key, _, _ = Widths.of(FP8_CONFIG)
    block = hidden * (query + 2 * key) + query * hidden + 3 * hidden * inner
    head = hidden * FP8_CONFIG["vocab_size"]
    found = of_tokens(counts, f"{scaling} wgrad")
    others = sum(count.flops for name, count in found.items() if "operation product" in name)
    assert in_8_bits(found) == (LONG - SHORT) * 2 * 6 * block
    assert others == (LONG - SHORT) * 6 * head


@pytest.mark.parametrize("wgrad", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_launches_of_quantising(scaling: str, wgrad: bool, counts: dict[str, Counts]) -> None:
    found = counts[f"{scaling}{' wgrad' * wgrad} {SHORT}"]
    more = sum(count.calls for name, count in found.items() if "fp8_cuda" in name)
    kernels = FP8_KERNELS_PER_LAYER[scaling]
    assert more == 2 * (kernels.tokens + kernels.weights + kernels.wgrad * wgrad)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_kept_weights_are_quantised_once_a_step(scaling: str, counts: dict[str, Counts]) -> None:
    """Not in each micro-batch, nor again for a block that is computed again; the products stay."""
    traffic = fp8_traffic(Widths.of(FP8_CONFIG), scaling, "block")
    made, kept = (counts[f"{scaling}, kept {keep}"] for keep in (False, True))
    saved = 2 * (2 * traffic.micro_batch - traffic.kept)
    assert bytes_of(made) - bytes_of(kept) == pytest.approx(saved, rel=0.03)
    assert in_8_bits(made) == in_8_bits(kept)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frozen_kept_weights_are_quantised_no_more(scaling: str, counts: dict[str, Counts]) -> None:
    """What is left are tokens: two layers forward, one again but its last product, and one gradient.

    With scales of rows, the only input that neither a norm nor SwiGLU quantises is attention's result.
    """
    hidden, inner, query, _, _, _ = Widths.of(FP8_CONFIG)
    element = 3 if scaling == "rowwise" else 5
    layer = [query] if scaling == "rowwise" else [hidden, query, hidden, inner]
    widths = 2 * layer + ([query] if scaling == "rowwise" else layer[:-1]) + [hidden]
    made, kept = (counts[f"{scaling}, frozen, kept {keep}"] for keep in (False, True))
    assert bytes_of(kept) == pytest.approx(2 * SHORT * sum(element * width + 4 for width in widths), rel=0.03)
    assert bytes_of(made) > 3 * bytes_of(kept)
    assert not any("transposed" in name for name in kept) and any("transposed" in name for name in made)


def test_the_refusal_of_a_gpu_names_the_flag(fake_device: FakeDevices, tmp_path: Path) -> None:
    """The device has a capability of 9.0; cuBLASLt refuses sizes that are no multiple of 16 as it does."""
    (found,) = run_program(fake_device(), "fp8_steps", "odd", "{}")
    assert "multiples of 16" in found["error"]
