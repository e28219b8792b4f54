"""--tune_gemm: the micro-batch that is measured, what is kept, and what is said where nothing can be.

The measuring itself: tests/ops/test_gemm_tuning.py, and on a GPU tests/train/test_engine_cuda.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastsft import _C
from fastsft.checkpoint import run_identity
from fastsft.model import tuned_gemms
from fastsft.model.tuned_gemms import (
    micro_batch,
    restore_tuned_gemms,
    sizes_to_tune,
    summary,
    tune_gemms,
)
from fastsft.planning.memory_plan import BatchShape
from ops.test_gemm_tuning import ENTRY
from ranks import run_ranks

HERE, OTHER = "cuBLASLt 130100 on NVIDIA H200", "cuBLASLt 130000 on NVIDIA H100"
TABLE = json.dumps([ENTRY])
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU, as far as the table is concerned."""
    monkeypatch.setattr(tuned_gemms, "library", lambda device: HERE)
    yield
    _C.set_tuned_gemms("[]")


@pytest.mark.parametrize(
    "work, tokens",
    [
        (BatchShape(8192, 6000, 2048, 16384, 12000, 2), 8192),
        (BatchShape(8192, 6000, 2048, 16384, 12000, 2), 1500),
        (BatchShape(8192, 8188, 2048, 8192, 8188, 1), 6372),
        (BatchShape(700, 90, 512, 700, 90, 1), 700),
        (BatchShape(513, 10, 512, 513, 10, 1), 513),
        (BatchShape(16, 3, 512, 16, 3, 1), 2),
    ],
)
def test_a_micro_batch_is_like_those_of_the_plan(work: BatchShape, tokens: int) -> None:
    dataset = micro_batch(work, tokens, 71)
    lengths, targets = np.asarray(dataset.lengths()), np.asarray(dataset.target_counts())
    assert tokens - 1 <= lengths.sum() <= tokens
    assert lengths.max() <= work.max_seqlen
    share = work.labels * tokens / work.tokens
    assert share - 2 * len(dataset) <= targets.sum() <= share


@pytest.mark.parametrize("most", [16, 17, 100, 1000, 2047, 8192, 16384, 65536])
def test_every_size_of_a_plan_is_near_one_that_is_measured(most: int) -> None:
    sizes = sizes_to_tune(most)
    assert sizes == sorted(set(sizes), reverse=True)
    assert sizes[0] == most
    for tokens in range(math.ceil(most / 16), most + 1):
        assert any(8 * abs(tokens - size) <= size for size in sizes) or tokens < 4, tokens
    assert len(sizes) <= 13


def test_next_to_no_tokens_are_not_measured() -> None:
    assert sizes_to_tune(0) == sizes_to_tune(15) == []


def model(kind: str = "native") -> Any:
    return SimpleNamespace(engine_kind=kind, vocab_size=lambda: 71)


class Engine:
    """Measures as a GPU would: one product, twice as fast as by the first proposal."""

    def __init__(self) -> None:
        self.tuned: list[tuple[int, float]] = []

    def tune_gemms(self, dataset: _C.TokenDataset, rows: Any, weights: Any) -> None:
        self.tuned.append(
            (int(dataset.lengths()[rows].sum()), float((dataset.target_counts() * weights).sum()))
        )
        _C.set_tuned_gemms(json.dumps([{**ENTRY, "gain": 2.0}]))


def tune(engine: Engine, device: torch.device = GPU, kind: str = "native") -> str:
    engine_of_tests: Any = engine
    return tune_gemms(model(kind), engine_of_tests, device, BatchShape(512, 100, 128, 512, 100, 1))


def test_products_are_measured_once() -> None:
    engine = Engine()
    assert tune(engine).endswith(
        "another algorithm than cuBLASLt's first proposal, 2.00 to 2.00 times as fast"
    )
    assert engine.tuned == [(tokens, pytest.approx(1.0)) for tokens in sizes_to_tune(512)]
    count = len(engine.tuned)
    assert tune(engine) == "matrix products run by the checkpoint's algorithms"
    assert len(engine.tuned) == count


def test_where_nothing_can_be_measured_a_line_says_so() -> None:
    engine = Engine()
    assert tune(engine, CPU) == "--tune_gemm True has no effect on a CPU"
    assert "no effect on the generic engine" in tune(engine, GPU, "generic")
    assert engine.tuned == []


def test_without_a_gain_the_line_says_so() -> None:
    assert summary([ENTRY | {"gain": 1.0}], [8192, 600]) == (
        "matrix products: 1 measured in micro-batches of 600 to 8,192 tokens; cuBLASLt's first proposals are "
        "the fastest"
    )
    assert summary([], []) == "matrix products: none to measure"


def test_what_a_checkpoint_keeps() -> None:
    assert tuned_gemms.tuned_products(GPU) is None
    _C.set_tuned_gemms(TABLE)
    saved = tuned_gemms.tuned_products(GPU)
    assert saved is not None
    assert saved["library"] == HERE
    tuned_gemms.forget_tuned_gemms()
    assert _C.tuned_gemms() == "[]"
    assert restore_tuned_gemms(saved, GPU) is None
    assert json.loads(_C.tuned_gemms()) == [ENTRY]


@pytest.mark.parametrize(
    "library, device, reason",
    [(OTHER, GPU, f"measured by {OTHER}, and this is {HERE}"), (HERE, CPU, "and this is a CPU")],
)
def test_algorithms_of_another_library_are_not_taken(library: str, device: torch.device, reason: str) -> None:
    said = restore_tuned_gemms({"library": library, "products": TABLE}, device)
    assert said is not None
    assert reason in said
    assert _C.tuned_gemms() == "[]"


SAVED = {"library": HERE, "products": TABLE}


@pytest.mark.parametrize(
    "saved, tune_gemm, device, said",
    [
        ({"tuned_products": SAVED, "tune_gemm": True}, True, GPU, None),
        ({"tuned_products": {**SAVED, "library": OTHER}, "tune_gemm": True}, True, GPU, f"by {OTHER}, and"),
        ({"tuned_products": SAVED, "tune_gemm": True}, True, CPU, "this is a CPU"),
        ({"tuned_products": SAVED, "tune_gemm": True}, False, GPU, "tune_gemm was True, now it is False"),
        ({"tuned_products": None, "tune_gemm": False}, True, GPU, "tune_gemm was False, now it is True"),
        ({}, True, GPU, "tune_gemm was False, now it is True"),
        ({"tuned_products": None, "tune_gemm": True}, True, CPU, None),
        ({"tuned_products": None, "tune_gemm": False}, False, GPU, None),
        ({"tuned_products": SAVED, "tune_gemm": True, "micro_batch_tokens": 4096}, True, GPU, "up to 4,096"),
    ],
)
def test_a_resumed_run_says_when_it_rounds_differently(
    saved: dict[str, Any],
    tune_gemm: bool,
    device: torch.device,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run_identity, "warn_once", lines.append)
    run: Any = SimpleNamespace(
        args=SimpleNamespace(tune_gemm=tune_gemm, device=device), planner=SimpleNamespace(token_budget=8192)
    )
    run_identity._restore_tuned_gemms(run, {"micro_batch_tokens": 8192, **saved}, "out/checkpoint-4")
    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]
    assert (_C.tuned_gemms() != "[]") == bool(saved.get("tuned_products") and tune_gemm and said is None)


def resume_on_two_kinds_of_gpu(rank: int, _: str) -> None:
    """Rank 1 has another GPU: no rank keeps the table, and all measure."""
    tuned_gemms.library = lambda device: OTHER if rank else HERE
    reason = restore_tuned_gemms(SAVED, GPU)
    assert reason is not None and f"this is {OTHER}" in reason
    assert _C.tuned_gemms() == "[]"
    engine = Engine()
    tune(engine)
    assert engine.tuned
    assert json.loads(_C.tuned_gemms()) == [{**ENTRY, "gain": 2.0}]


def test_ranks_decide_together(tmp_path: Any) -> None:
    run_ranks(2, resume_on_two_kinds_of_gpu, str(tmp_path))
