"""cuDNN on the fake device: the graphs that fastsft describes compute attention; plans, lists, refusals.

What cuDNN's frontend describes is computed as it stands, in float32 (cudnn/compute.cpp). Tokens that a list
does not have are NaN.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_device.cases import SMALL_WEIGHTS, Cases
from fake_device.running import FakeDevice, run_program
from fake_device.test_engine_steps import compare

FakeDevices = Callable[..., FakeDevice]
SETTINGS = {"FREE_MIB": 64}  # what is filled with NaN before each call


def case(
    heads: tuple[int, int, int], lengths: list[int], window: int = 0, dtype: str = "bfloat16", offset: int = 0
) -> Any:
    return {"heads": heads, "lengths": lengths, "window": window, "dtype": dtype, "offset": offset}


# Equal ones; the longest of a shape; grouped heads with a window in two ranges; short and empty ones.
CASES = [
    case((2, 2, 16), [60, 60]),
    case((3, 3, 24), [128, 127, 2, 1, 33], dtype="float16"),
    case((4, 2, 16), [200, *[30] * 9], window=40),
    case((4, 1, 8), [0, 5, 0, 130]),
]
RANGES = (1, 2, 2, 2)


def test_attention_is_the_formula(fake_device: FakeDevices) -> None:
    device = fake_device(schedule="lazy", races=True, counts=True, settings=SETTINGS)
    (found,) = run_program(device, "cudnn_calls", json.dumps(CASES))
    assert len(found) == 2 * len(CASES)
    for out, lse, grad in found:
        assert out < 4e-3 and lse < 1e-6 and grad < 6e-3
    counts = device.count()
    passes = 2 * 2  # two calls of two passes
    assert counts["operation cudnn graph"].calls == passes * sum(RANGES)
    assert "operation flash attention" not in counts
    device.check()


def test_a_wrong_length_shows(fake_device: FakeDevices) -> None:
    """One token too few, or one that the offsets do not have."""
    wrong = [case((2, 2, 16), [60, 50], offset=offset) for offset in (-1, 1)]
    (found,) = run_program(fake_device(settings=SETTINGS), "cudnn_calls", json.dumps(wrong))
    assert len(found) == 2 * len(wrong)
    for values in found:
        assert any(value is None or value > 1e-2 for value in values)


def test_flash_computes_what_cudnn_refuses(fake_device: FakeDevices) -> None:
    """And its log-sum-exps are read in its own layout: both passes get the same answer."""
    device = fake_device(counts=True, settings={**SETTINGS, "REFUSE_CUDNN": 1})
    (found,) = run_program(device, "cudnn_calls", json.dumps(CASES[2:3]))
    assert all(out < 4e-3 and grad < 6e-3 for out, _, grad in found)
    counts = device.count()
    assert "operation cudnn graph" not in counts and "operation flash attention" in counts
    device.check()


def test_engines_train_as_on_the_cpu(fake_device: FakeDevices, tmp_path: Path) -> None:
    """With the conversations of a micro-batch in order of length on both sides."""
    dtypes = {"untied": "bfloat16", "qwen2": "float16"}
    cases: Cases = {
        family: {"family": family, "sizes": SMALL_WEIGHTS, "options": {"compute_dtype": dtype}, "cudnn": True}
        for family, dtype in dtypes.items()
    }
    device = fake_device(schedule="lazy", races=True, counts=True)
    compare(cases, tmp_path, device)
    counts = device.count()
    # Two families, two steps of two micro-batches, three layers, two passes; one range or two.
    assert counts["operation cudnn graph"].calls >= 2 * 2 * 2 * 3 * 2
    assert "operation flash attention" not in counts
