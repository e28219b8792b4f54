"""The costs of a step are counted: bytes by the time model's formulas, launches and waits by number."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest

from fake_device.running import FakeDevice, run_program
from fastsft import _C
from fastsft.planning.layer_traffic import KERNELS_PER_LAYER, Widths, layer_traffic, recomputed_traffic

# No two widths are equal, so that no formula is right by chance.
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 88, "num_attention_heads": 3,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 72, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
NARROW = {
    "compute_dtype": "bfloat16", "grad_dtype": "bfloat16", "optim_dtype": "bfloat16", "master_dtype": "split",
}  # fmt: skip
SHORT, LONG = 16, 32  # tokens of the only conversation
OURS = ("rms_norm forward", "rms_norm backward", "rope", "swiglu forward", "swiglu backward", "copies")


class Count(NamedTuple):
    """Calls of one name, bytes read and written, and FLOPs."""

    calls: int = 0
    read: int = 0
    written: int = 0
    flops: int = 0

    def minus(self, other: Count) -> Count:
        return Count(*(a - b for a, b in zip(self, other, strict=True)))


Counts = dict[str, Count]


def case(layers: int, lengths: list[int], uncounted_steps: int = 0, **options: Any) -> dict[str, Any]:
    return {
        "config": {**CONFIG, "num_hidden_layers": layers}, "lengths": lengths, "micro_batches": len(lengths),
        "uncounted_steps": uncounted_steps, "options": {**NARROW, "recompute": "none", **options},
    }  # fmt: skip


CASES = {
    **{f"one layer {tokens}": case(1, [tokens]) for tokens in (SHORT, LONG)},
    **{
        f"{policy} {tokens}": case(2, [tokens], recompute=policy)
        for policy in _C.recompute_policies()
        for tokens in (SHORT, LONG)
    },
    **{f"step of {layers}": case(layers, [SHORT, SHORT], uncounted_steps=2) for layers in (1, 2)},
}


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counts]:
    device = FakeDevice(tmp_path_factory.mktemp("reports") / "counts", counts=True)
    (found,) = run_program(device, "counted_steps", json.dumps(CASES))
    device.check()
    return {name: {key: Count(*numbers) for key, numbers in rows.items()} for name, rows in found.items()}


def difference(more: Counts, fewer: Counts) -> Counts:
    return {name: more.get(name, Count()).minus(fewer.get(name, Count())) for name in {*more, *fewer}}


def of_tokens(counts: dict[str, Counts], name: str) -> Counts:
    """Return the counts that LONG - SHORT tokens add to a case."""
    return difference(counts[f"{name} {LONG}"], counts[f"{name} {SHORT}"])


def group_of(name: str) -> str:
    """Return the entry of layer_traffic that a kernel belongs to; "" if to none."""
    if "rms_norm_cuda" in name or "swiglu_cuda" in name:
        direction = "forward" if "forward_kernel" in name else "backward"
        return f"{name.split()[2].split('_cuda')[0]} {direction}"
    if "rope_cuda" in name:
        return "rope"
    return "copies" if name.startswith("operation copy") else ""


def bytes_by_group(counts: Counts) -> dict[str, float]:
    """Return the bytes per token."""
    found = dict.fromkeys(OURS, 0.0)
    for name, count in counts.items():
        if group := group_of(name):
            found[group] += (count.read + count.written) / (LONG - SHORT)
    return found


def test_each_kernel_moves_the_bytes_of_the_time_model(counts: dict[str, Counts]) -> None:
    found = bytes_by_group(difference(of_tokens(counts, "none"), of_tokens(counts, "one layer")))
    # While a micro-batch has fewer tokens than the norm's partial sums have rows, the sums grow with it.
    found["rms_norm backward"] -= 2 * 4 * CONFIG["hidden_size"]
    assert found == layer_traffic(Widths.of(CONFIG), copies=True)


@pytest.mark.parametrize("policy", [policy for policy in _C.recompute_policies() if policy != "none"])
def test_what_a_policy_recomputes_moves_the_bytes_of_the_time_model(
    policy: str, counts: dict[str, Counts]
) -> None:
    more, base = (bytes_by_group(of_tokens(counts, name)) for name in (policy, "none"))
    expected = 2 * recomputed_traffic(Widths.of(CONFIG), policy, copies=True)  # two layers
    assert sum(more.values()) - sum(base.values()) == pytest.approx(expected, rel=0.03)


def test_logits_have_two_bytes(counts: dict[str, Counts]) -> None:
    """The product writes them, and the loss reads them and writes their gradient in their place."""
    vocab, more = CONFIG["vocab_size"], LONG - SHORT
    made = [
        counts[f"none {tokens}"][f"operation product {vocab}x{tokens}x{CONFIG['hidden_size']}"]
        for tokens in (LONG, SHORT)
    ]
    assert made[0].written - made[1].written == more * 2 * vocab
    loss = [count for name, count in of_tokens(counts, "none").items() if "|cross_entropy_kernel" in name]
    of_token = 8 + 4 + 8  # a target, its weight and the loss
    assert sum(count.read + count.written for count in loss) == more * (2 * 2 * vocab + of_token)


def calls(counts: Counts, kind: str) -> dict[str, int]:
    """Return the numbers of calls, of "operation" or "call", without products' sizes and kernels' types."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        if name.startswith(kind) and count.calls:
            short = re.sub(r"(_cuda)?\|\w*|<.*| \d+x.*|:.*", "", name.removeprefix(f"{kind} "))
            found[short] = found.get(short, 0) + count.calls
    return found


def test_launches_of_a_layer(counts: dict[str, Counts]) -> None:
    """Of two micro-batches and one update. A change that needs more launches changes this list."""
    layer = calls(difference(counts["step of 2"], counts["step of 1"]), "operation")
    assert layer == {
        "product": 24, "flash attention": 2, "flash attention backward": 2, "kernel rms_norm": 8,
        "kernel column_sums": 4, "kernel rope": 4, "kernel swiglu": 4, "copy device to device": 4,
        "copy_ by a kernel": 7, "kernel adamw": 2, "kernel gradient": 3, "aten": 4,
    }  # fmt: skip
    # FlashAttention 2 launches three kernels in backward. Zeroing belongs to accumulation.
    launches = sum(layer.values()) - layer["kernel adamw"] - layer["kernel gradient"] - layer["aten"]
    assert launches // 2 + 2 == KERNELS_PER_LAYER


def test_waits_and_allocations_of_a_step(counts: dict[str, Counts]) -> None:
    """The host waits once, for the results, and allocates nothing; the program waits for the device."""
    found = calls(counts["step of 2"], "call")
    assert not {"cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize"} & set(found)
    assert found["cudaEventSynchronize"] == 1 and found["cudaDeviceSynchronize"] == 1
    assert found["cudaLaunchKernel"] <= 74 and found["cudaMemcpyAsync"] <= 11


def test_the_optimizer_moves_the_bytes_of_the_time_model(counts: dict[str, Counts]) -> None:
    """20 bytes a parameter: master weight and moments read and written, and the gradient read twice."""
    update = [
        count.read + (count.written if "adamw_kernel" in name else 0)
        for name, count in counts["step of 2"].items()
        if "adamw_kernel" in name or "parts_kernel" in name
    ]
    config = json.dumps(CASES["step of 2"]["config"])
    assert sum(update) / _C.count_parameters(config) == pytest.approx(20, rel=0.01)
