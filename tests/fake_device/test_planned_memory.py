"""The memory plan of a GPU next to what torch's allocator hands out on the fake device."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines import planned_bytes
from fake_device.running import FakeDevice, run_program

FakeDevices = Callable[..., FakeDevice]

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 176,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip
TOKENS = 4096  # of one row
SIZES = {"micro_batch": [TOKENS, TOKENS // 2, TOKENS], "step": [2 * TOKENS, TOKENS, 2]}
FORMS: dict[str, dict[str, Any]] = {
    "selective": {"recompute": "selective"},
    "block": {"recompute": "block"},
    "tiles": {"recompute": "block", "tile_tokens": 500},
    "inputs on the host": {"recompute": "block", "offload_inputs": True},
    "both": {"recompute": "block", "tile_tokens": 500, "offload_inputs": True},
}
CASES = {
    f"{name} {dtype}": {
        "config": CONFIG, "sizes": SIZES, "options": {"compute_dtype": dtype, **options},
    }
    for name, options in FORMS.items()
    for dtype in ("float32", "bfloat16")
}  # fmt: skip


def test_what_is_planned_is_taken(fake_device: FakeDevices) -> None:
    device = fake_device()
    (found,) = run_program(device, "planned_steps", json.dumps(CASES))
    device.check()
    for name, case in CASES.items():
        plan = planned_bytes(json.dumps(CONFIG), on_cpu=False, **SIZES, **case["options"])
        assert found[name]["device"] == pytest.approx(plan.peak + plan.outside, rel=0.05), name
        kept = 4 if case["options"].get("offload_inputs") else 0
        itemsize = 2 if "bfloat16" in name else 4
        assert found[name]["host"] == kept * TOKENS * CONFIG["hidden_size"] * itemsize
    for dtype in ("float32", "bfloat16"):
        sizes = [found[f"{name} {dtype}"]["device"] for name in FORMS]
        assert sizes[0] > sizes[1] > max(sizes[2:4]) and sizes[4] < min(sizes[2:4])
