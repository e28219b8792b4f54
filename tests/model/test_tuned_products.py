"""--tune_gemm: the micro-batch that is measured, what is kept, and what is said where nothing can be.

The measuring itself: tests/ops/test_gemm_tuning.py, and on a GPU tests/train/test_engine_cuda.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastsft import _C
from fastsft.checkpoint import run_identity
from fastsft.model import tuned_products
from fastsft.model.tuned_products import full_micro_batch, keep_tuned_products, summary, tune_products
from fastsft.planning.memory_plan import Workload
from ops.test_gemm_tuning import ENTRY

HERE, OTHER = "cuBLASLt 130100 on NVIDIA H200", "cuBLASLt 130000 on NVIDIA H100"
TABLE = json.dumps([ENTRY])
CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU, as far as the table is concerned."""
    monkeypatch.setattr(tuned_products, "library", lambda device: HERE)
    yield
    _C.set_tuned_gemms("[]")


@pytest.mark.parametrize(
    "work",
    [
        Workload(8192, 6000, 2048, 16384, 12000, 2),
        Workload(8192, 8188, 2048, 8192, 8188, 1),
        Workload(700, 90, 512, 700, 90, 1),
        Workload(513, 10, 512, 513, 10, 1),
        Workload(12, 3, 512, 12, 3, 1),
    ],
)
def test_the_micro_batch_is_as_large_as_planned(work: Workload) -> None:
    dataset = full_micro_batch(work, 71)
    lengths, targets = np.asarray(dataset.lengths()), np.asarray(dataset.target_counts())
    assert work.tokens - 1 <= lengths.sum() <= work.tokens
    assert lengths.max() <= work.longest
    assert work.labels - len(dataset) <= targets.sum() <= work.labels


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
    return tune_products(model(kind), engine_of_tests, device, Workload(512, 100, 128, 512, 100, 1))


def test_products_are_measured_once() -> None:
    engine = Engine()
    assert tune(engine).endswith(
        "another algorithm than cuBLASLt's first proposal, 2.00 to 2.00 times as fast"
    )
    assert engine.tuned == [(512, pytest.approx(1.0))]
    assert tune(engine) == "matrix products run by the checkpoint's algorithms"
    assert len(engine.tuned) == 1


def test_where_nothing_can_be_measured_a_line_says_so() -> None:
    engine = Engine()
    assert tune(engine, CPU) == "--tune_gemm True has no effect on a CPU"
    assert "no effect on the generic engine" in tune(engine, GPU, "generic")
    assert engine.tuned == []


def test_without_a_gain_the_line_says_so() -> None:
    assert summary([ENTRY | {"gain": 1.0}]) == (
        "matrix products: 1 measured, cuBLASLt's first proposals are the fastest"
    )


def test_what_a_checkpoint_keeps() -> None:
    assert tuned_products.tuned_products(GPU) is None
    _C.set_tuned_gemms(TABLE)
    saved = tuned_products.tuned_products(GPU)
    assert saved is not None
    assert saved["library"] == HERE
    tuned_products.forget_tuned_products()
    assert _C.tuned_gemms() == "[]"
    assert keep_tuned_products(saved, GPU) is None
    assert json.loads(_C.tuned_gemms()) == [ENTRY]


@pytest.mark.parametrize(
    "library, device, reason",
    [(OTHER, GPU, f"measured by {OTHER}, and this is {HERE}"), (HERE, CPU, "and this is a CPU")],
)
def test_algorithms_of_another_library_are_not_taken(library: str, device: torch.device, reason: str) -> None:
    said = keep_tuned_products({"library": library, "products": TABLE}, device)
    assert said is not None
    assert reason in said
    assert _C.tuned_gemms() == "[]"


@pytest.mark.parametrize(
    "saved, tune_gemm, said",
    [
        ({"library": HERE, "products": TABLE}, True, None),
        ({"library": OTHER, "products": TABLE}, True, f"they were measured by {OTHER}"),
        ({"library": HERE, "products": TABLE}, False, "tune_gemm was True, now it is False"),
        (None, True, "tune_gemm was False, now it is True"),
        (None, False, None),
    ],
)
def test_a_resumed_run_says_when_it_rounds_differently(
    saved: dict[str, str] | None, tune_gemm: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run_identity, "warn_once", lines.append)
    trainer: Any = SimpleNamespace(args=SimpleNamespace(tune_gemm=tune_gemm, device=GPU))
    run_identity._keep_tuned_products(trainer, {"tuned_products": saved}, "out/checkpoint-4")
    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]
    assert (_C.tuned_gemms() != "[]") == (bool(saved) and tune_gemm and said is None)
