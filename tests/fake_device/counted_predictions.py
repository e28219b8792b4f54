"""Predict the speed of Vicuna-7B from counted bytes, FLOPs and launches, next to the time model's formulas.

usage: python -m fake_device.counted_predictions   (in tests, with PYTHONPATH=support; a minute)

Steps of models with a 32nd and a 16th of the widths are counted, with one and two layers, and with two and
three micro-batches. Bytes of a token grow linearly with the widths, those of a parameter with their square.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fake_device.running import FakeDevice, run_program
from fastsft.planning import time_model
from fastsft.planning.gpus import gpu_named
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.time_model import Prediction, predict

CONFIG = Path(__file__).parents[2] / "benchmarks" / "configs" / "vicuna-7b.json"
WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
SHARES = (32, 16)  # of the widths that are counted
NARROW = {
    "compute_dtype": "bfloat16", "grad_dtype": "bfloat16", "optim_dtype": "bfloat16", "master_dtype": "split",
}  # fmt: skip
SHORT, LONG = 16, 32  # tokens of each micro-batch
STEP_TOKENS, LONGEST = 65_536, 2047
KERNELS_OF_ATTENTION_BACKWARD = 3
ROWS = [
    ("H100", 2047, "flash2"),
    ("H100", 2047, "cudnn"),
    ("H200", 16_376, "flash2"),
    ("H200", 16_376, "cudnn"),
]
# Partial sums of a norm's gradient have as many rows as the GPU has room for, if there are enough tokens.
LAYER = ("rms_norm", "rope", "swiglu", "copy device to device", "copy_ by a kernel")
HEAD = ("cross_entropy", "add_losses", "embedding", "index_select", "index_copy", "sort")
Counts = dict[str, list[int]]
ByShare = dict[int, Counts]
Parts = tuple[ByShare, ByShare]  # of a layer, and of the rest
Case = tuple[bool, int, int, int, int]  # cuDNN, share of the widths, layers, micro-batches, tokens of each


def config_of(share: int, layers: int) -> dict[str, Any]:
    whole = json.loads(CONFIG.read_text())
    scaled = {name: whole[name] // share for name in WIDTHS}
    return {**whole, **scaled, "head_dim": 128, "num_hidden_layers": layers}


def counted() -> dict[Case, Counts]:
    keys = [
        (cudnn, share, layers, batches, tokens)
        for cudnn in (False, True)
        for share in SHARES
        for layers in (1, 2)
        for batches, tokens in ((2, SHORT), (3, SHORT), (2, LONG))
    ]
    cases = {
        str(key): {
            "config": config_of(share, layers), "lengths": [tokens] * batches, "micro_batches": batches,
            "uncounted_steps": 0, "cudnn": cudnn, "options": {**NARROW, "recompute": "none"},
        }
        for key in keys
        for cudnn, share, layers, batches, tokens in [key]
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        device = FakeDevice(Path(folder, "reports"), counts=True)
        (found,) = run_program(device, "counted_steps", json.dumps(cases), seconds=900)
        device.check()
    return {key: found[str(key)] for key in keys}


def minus(more: Counts, fewer: Counts, times: int = 1) -> Counts:
    none = [0, 0, 0, 0]
    names = {*more, *fewer}
    return {
        name: [a - times * b for a, b in zip(more.get(name, none), fewer.get(name, none), strict=True)]
        for name in names
    }


def moved(counts: Counts, *words: str) -> int:
    """Return the bytes of operations whose name has one of the words."""
    return sum(
        count[1] + count[2]
        for name, count in counts.items()
        if name.startswith("operation") and any(word in name for word in words)
    )


class Counted:
    """Counts of a layer and of the rest of a model, by the share of the widths, for one kernel of attention.

    tokens: what LONG - SHORT further tokens add to two micro-batches. batch: a further micro-batch. update: a
    step without its micro-batches.
    """

    def __init__(self, found: dict[Case, Counts], cudnn: bool) -> None:
        def by_parts(more: tuple[int, int], fewer: tuple[int, int]) -> Parts:
            def added(share: int, layers: int) -> Counts:
                return minus(found[cudnn, share, layers, *more], found[cudnn, share, layers, *fewer])

            layer = {share: minus(added(share, 2), added(share, 1)) for share in SHARES}
            return layer, {share: minus(added(share, 1), layer[share]) for share in SHARES}

        self.layer_tokens, self.rest_tokens = by_parts((2, LONG), (2, SHORT))
        self.layer_batch, self.rest_batch = by_parts((3, SHORT), (2, SHORT))
        least = SHARES[-1]
        batch = minus(found[cudnn, least, 1, 3, SHORT], found[cudnn, least, 1, 2, SHORT])
        self.update = minus(found[cudnn, least, 1, 2, SHORT], batch, times=2)

    def of_token(self, part: ByShare, *words: str) -> float:
        """Return the whole model's bytes of a token, which are linear in the widths."""
        narrow, wide = (moved(part[share], *words) / (2 * (LONG - SHORT)) for share in SHARES)
        return narrow + (wide - narrow) * (SHARES[0] - 1)

    def flops(self, layers: int) -> float:
        """Return the whole model's FLOPs of products of a token, which grow with the square of the widths."""
        share = SHARES[-1]
        layer, rest = (
            sum(count[3] for count in part[share].values()) / SHORT
            for part in (self.layer_batch, self.rest_batch)
        )
        return (layers * layer + rest) * share**2

    def launches(self) -> int:
        """Return the kernels of a layer. Attention's backward pass is one operation, of several kernels."""
        operations = {
            name: count[0]
            for name, count in self.layer_batch[SHARES[-1]].items()
            if name.startswith("operation") and "gradient_cuda" not in name and "zero_" not in name
        }
        return sum(operations.values()) + KERNELS_OF_ATTENTION_BACKWARD - 1

    def added_in_products(self, part: ByShare) -> float:
        """Return the bytes that products read and write of gradients to which they add."""
        share = SHARES[-1]
        found = 0
        for name, (calls, read, _, _) in part[share].items():
            if name.startswith("operation product") and name.endswith(f"x{SHORT}"):
                rows, columns, inner = map(int, name.split()[-1].split("x"))
                found += 2 * (read - calls * 2 * inner * (rows + columns))
        return float(found * share**2)


def counted_model(counted: Counted) -> type:
    """Return the time model's class with counts in the place of its formulas."""
    formulas = time_model._Model
    gradients = ("accumulate_kernel", "zero_")

    class CountedModel(formulas):  # type: ignore[misc, valid-type]
        def __init__(self, plan: MemoryPlan) -> None:
            super().__init__(plan)
            self.products = counted.flops(self.layers)

        @property
        def kernels(self) -> int:
            return self.layers * counted.launches()

        @property
        def elementwise(self) -> float:
            sums = 2 * 4 * self.widths.hidden  # see LAYER
            return self.layers * (counted.of_token(counted.layer_tokens, *LAYER) - sums)

        @property
        def head_bytes(self) -> float:
            # The product writes logits of 2 bytes, and two products read their gradient.
            return counted.of_token(counted.rest_tokens, *HEAD) + 6.0 * self.vocabulary

        @property
        def accumulated_bytes(self) -> float:
            share = SHARES[-1]
            parts = ((self.layers, counted.layer_batch), (1, counted.rest_batch))
            in_products = sum(times * counted.added_in_products(part) for times, part in parts)
            alone = sum(times * moved(part[share], *gradients) * share**2 for times, part in parts)
            return time_model._ADD_SHARE * in_products + float(alone)

        @property
        def optimizer_bytes(self) -> float:
            from fastsft import _C

            bytes_moved = moved(counted.update, "adamw", "parts_kernel")
            config = json.dumps(config_of(SHARES[-1], 1))
            return float(bytes_moved / _C.count_parameters(config) * self.trained)

    return CountedModel


def plan_of(gpu: str, tokens: int, kernel: str) -> MemoryPlan:
    setting = EngineSettings(
        CONFIG.read_text(), device="cuda", gpu=gpu_named(gpu), attention_kernel=kernel
    ).with_state(**NARROW)
    work = BatchShape.full(tokens, LONGEST, STEP_TOKENS // tokens)
    return plan_memory(setting, "none", tokens, work)


def shown(found: Prediction) -> str:
    return f"{found.tokens_per_second:,.0f}, {found.mfu:.1%}"


def predictions() -> Iterator[tuple[str, Prediction, Prediction]]:
    """Yield each row's prediction by formulas and by counts."""
    found = counted()
    for name, tokens, kernel in ROWS:
        plan, gpu = plan_of(name, tokens, kernel), gpu_named(name)
        assert gpu is not None
        model = counted_model(Counted(found, kernel == "cudnn"))
        with mock.patch.object(time_model, "_Model", model):
            by_counts = predict(plan, gpu)
        yield f"{name}, {tokens:,} tokens, {kernel}", predict(plan, gpu), by_counts


def main() -> None:
    print("| GPU, micro-batch, attention | by formulas | by counts | microseconds of a token that differ |")
    print("|---|---|---|---|")
    for name, formulas, counts in predictions():
        both = {term: (seconds, counts.seconds[term]) for term, seconds in formulas.seconds.items()}
        differ = [
            f"{term} {a * 1e6:.3f} and {b * 1e6:.3f}" for term, (a, b) in both.items() if abs(a - b) > 1e-9
        ]
        print("|", " | ".join((name, shown(formulas), shown(counts), "; ".join(differ))), "|", flush=True)


if __name__ == "__main__":
    main()
