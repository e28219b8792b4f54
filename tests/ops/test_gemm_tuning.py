"""Products that were measured run by the fastest algorithm, sizes near theirs and resumed runs as well.

cuBLASLt is one of the tests' own, whose algorithms differ in bits and take the times that a test says
(tests/cublas_lt).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cuda_on_cpu import build
from cuda_on_cpu.emulation import Emulation, emulation
from engines import new_engine, train_step
from fastsft import _C
from runs import random_dataset

NEW = {"master_dtype": "split", "optim_dtype": "bfloat16", "grad_dtype": "bfloat16"}


@pytest.fixture
def emulated() -> Iterator[Emulation]:
    if reason := build.missing():
        pytest.skip(reason)
    made = emulation()
    made.change_gemms("forget")
    yield made
    made.change_gemms("forget")
    made.gemm_times(1, 1, 1)
    made.gemm_loading(0)
    made.gemm_refuses_above(None)


class Product:
    """a [rows, 512] by b [320, 512], transposed."""

    def __init__(self, emulated: Emulation, rows: int = 256) -> None:
        generator = torch.Generator().manual_seed(rows)
        self.ops = emulated.ops
        self.a, self.b = (torch.randn(n, 512, generator=generator).bfloat16() for n in (rows, 320))
        self.out = torch.zeros(rows, 320)

    def __call__(self, beta: float = 0.0) -> Tensor:
        """By the algorithm that products take."""
        if beta == 0:
            self.out.fill_(torch.nan)
        self.ops.gemm(self.a, self.b, self.out, False, True, beta)
        return self.out.clone()

    def by(self, candidate: int) -> Tensor:
        """By one of cuBLASLt's proposals, and by the usual one from then on again."""
        self.ops.gemm_candidate(self.a, self.b, self.out, False, True, 0.0, candidate)
        made = self.out.clone()
        self.ops.gemm_candidate(self.a, self.b, self.out, False, True, 0.0, 0)
        return made


def candidates(emulated: Emulation, rows: int = 256) -> list[Tensor]:
    """What a product is by each proposal, which differ; plans are new afterwards."""
    product = Product(emulated, rows)
    made = [product.by(index) for index in range(3)]
    assert not any(torch.equal(made[i], made[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    emulated.change_gemms("forget")
    return made


def tune(emulated: Emulation, rows: int = 256) -> Tensor:
    with emulated.tuning_gemms():
        return Product(emulated, rows)()


@pytest.mark.parametrize(
    "times, fastest, gain",
    [((3, 1, 2), 1, 3.0), ((4, 3, 2), 2, 2.0), ((1, 2, 3), 0, 1.0), ((1.01, 1, 1), 0, 1.0)],
    ids=["second", "third", "first", "noise"],
)
def test_the_fastest_is_taken(
    emulated: Emulation, times: tuple[float, ...], fastest: int, gain: float
) -> None:
    expected = candidates(emulated)
    assert torch.equal(Product(emulated)(), expected[0])
    emulated.gemm_times(*times)
    assert torch.equal(tune(emulated), expected[fastest])
    assert emulated.gains() == pytest.approx([gain])
    assert torch.equal(Product(emulated)(), expected[fastest])


def test_loading_a_kernel_is_not_measured(emulated: Emulation) -> None:
    emulated.gemm_times(0.05, 0.05, 0.05)
    emulated.gemm_loading(5)
    tune(emulated)
    assert emulated.gains() == [1.0]


def test_a_tuned_algorithm_that_is_refused_when_it_runs(emulated: Emulation) -> None:
    """cuBLASLt's check does not promise that it will run: the first proposal does."""
    tuned, expected = candidates(emulated, 256), candidates(emulated, 270)
    emulated.gemm_times(3, 1, 2)
    tune(emulated, 256)
    emulated.gemm_refuses_above(260)
    product = Product(emulated, 270)
    assert torch.equal(product(), expected[0])
    assert torch.equal(product(), expected[0])
    assert torch.equal(Product(emulated, 256)(), tuned[1])


def test_proposals_that_are_refused_do_not_count(emulated: Emulation) -> None:
    expected = candidates(emulated)
    emulated.gemm_times(3, 1, 2)
    emulated.gemm_refuses_above(100)
    assert torch.equal(tune(emulated), expected[0])
    assert emulated.gains() == [1.0]


def test_sizes_near_a_tuned_one_take_its_algorithm(emulated: Emulation) -> None:
    near, far = candidates(emulated, 225), candidates(emulated, 223)
    emulated.gemm_times(3, 1, 2)
    tune(emulated, 256)
    assert torch.equal(Product(emulated, 225)(), near[1])
    assert torch.equal(Product(emulated, 223)(), far[0])
    emulated.gemm_times(3, 2, 1)
    tune(emulated, 220)
    assert len(emulated.gains()) == 2
    assert torch.equal(Product(emulated, 225)(), near[2]), "the nearest counts"


def test_a_product_is_measured_once(emulated: Emulation) -> None:
    emulated.gemm_times(2, 1, 2)
    with emulated.tuning_gemms():
        product = Product(emulated)
        product()
        product()
        assert len(emulated.gains()) == 1
        product(beta=1.0)
        assert len(emulated.gains()) == 2, "a sum is another product"
    Product(emulated, 128)()
    assert len(emulated.gains()) == 2


def test_addends_apart_stay_right_while_they_are_measured(emulated: Emulation) -> None:
    product = Product(emulated)
    addend = torch.randn(256, 320)
    emulated.gemm_times(2, 1, 2)
    with emulated.tuning_gemms():
        emulated.ops.gemm_add(product.a, product.b, addend, product.out, False, True)
    expected = product.a.double() @ product.b.double().T + addend.double()
    torch.testing.assert_close(product.out.double(), expected, rtol=1e-4, atol=1e-3)


def test_a_kept_table_gives_the_same_bits(emulated: Emulation) -> None:
    expected = candidates(emulated)
    emulated.gemm_times(2, 1, 2)
    tune(emulated)
    emulated.change_gemms("keep")
    emulated.change_gemms("forget")
    assert torch.equal(Product(emulated)(), expected[0])
    emulated.change_gemms("put_back")
    assert torch.equal(Product(emulated)(), expected[1])
    emulated.change_gemms("spoil")
    assert torch.equal(Product(emulated)(), expected[0]), "cuBLASLt does not take it"


def tiny_engine(dtype: str = "bfloat16") -> tuple[_C.Engine, _C.TokenDataset]:
    config = {
        "model_type": "llama", "vocab_size": 71, "hidden_size": 256, "intermediate_size": 320,
        "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    engine = new_engine(json.dumps(config), compute_dtype=dtype, **(NEW if dtype == "bfloat16" else {}))
    generator = torch.Generator().manual_seed(1)
    for name, shape in engine.parameter_shapes.items():
        noise = torch.randn(shape, generator=generator)
        engine.set_parameter(name, 1 + 0.1 * noise if len(shape) == 1 else 0.05 * noise)
    engine.publish()
    return engine, random_dataset(6, 71, 60)


def micro_batches(dataset: _C.TokenDataset) -> tuple[list[Any], list[Any]]:
    """Rows and weights of two."""
    parts = np.array_split(np.arange(6), 2)
    return parts, [np.full(len(part), 1 / dataset.target_counts().sum()) for part in parts]


def steps(engine: _C.Engine, dataset: _C.TokenDataset) -> list[tuple[float, float]]:
    options = {"learning_rate": 5e-3, "weight_decay": 0.1, "max_grad_norm": 1.0}
    results = [train_step(engine, dataset, *micro_batches(dataset), **options) for _ in range(2)]
    return [(result.loss, result.grad_norm) for result in results]


def tune_engine(engine: _C.Engine, dataset: _C.TokenDataset) -> None:
    for rows, weights in zip(*micro_batches(dataset), strict=True):
        engine.tune_gemms(dataset, rows, weights)


@pytest.mark.variants("bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_after_tuning_are_those_of_its_table(emulated: Emulation, dtype: str) -> None:
    """Products that add to gradients leave wrong sums while they are measured; nothing of them is kept."""
    emulated.gemm_times(2, 1, 3)
    with emulated.instead_of_cpu_ops():
        engine, dataset = tiny_engine(dtype)
        plain = steps(*tiny_engine(dtype))
        with emulated.tuning_gemms():
            tune_engine(engine, dataset)
        assert engine.step_count == 0
        gains = emulated.gains()
        assert len(gains) > 10
        assert set(gains) == {2.0}
        emulated.change_gemms("keep")
        tuned = steps(engine, dataset)
        emulated.change_gemms("put_back")
        again = steps(*tiny_engine(dtype))
        assert emulated.gains() == gains, "measured outside of the tuning"
    assert tuned == again
    assert tuned != plain
    assert np.array(tuned) == pytest.approx(np.array(plain), rel=1e-2)


@pytest.mark.parametrize("options", [{}, {"recompute": "block"}])
def test_tuning_on_a_cpu_changes_nothing(options: dict[str, Any]) -> None:
    engine, dataset = tiny_engine()
    tune_engine(engine, dataset)
    assert _C.tuned_gemms() == "[]"
    assert steps(engine, dataset) == steps(*tiny_engine())


ENTRY = {
    "m": 8188, "n": 4096, "k": 4096, "lda": 4096, "ldb": 4096, "ldadd": 4096, "ldout": 4096,
    "transpose_a": False, "transpose_b": True, "accumulates": False, "tf32": False, "alignment_a": 256,
    "alignment_b": 256, "alignment_add": 256, "alignment_out": 256, "dtype": "bfloat16",
    "out_dtype": "float32", "algorithm": [2**64 - 1, 2, 3, 4, 5, 6, 7, 0], "gain": 1.0625,
}  # fmt: skip


@pytest.fixture
def no_table() -> Iterator[None]:
    yield
    _C.set_tuned_gemms("[]")


@pytest.mark.usefixtures("no_table")
def test_the_table_as_json() -> None:
    _C.set_tuned_gemms(json.dumps([ENTRY, {**ENTRY, "m": 7}]))
    assert json.loads(_C.tuned_gemms()) == [ENTRY, {**ENTRY, "m": 7}]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{}", "expected an array"),
        ("[", "not JSON"),
        (json.dumps([{**ENTRY, "dtype": "int8"}]), 'no dtype "int8"'),
        (json.dumps([{**ENTRY, "m": "many"}]), "must be number"),
        (json.dumps([{**ENTRY, "algorithm": [1, 2]}]), "tuned products"),
        (json.dumps([{name: value for name, value in ENTRY.items() if name != "ldadd"}]), "ldadd"),
    ],
)
@pytest.mark.usefixtures("no_table")
def test_another_text_is_refused_and_changes_nothing(text: str, reason: str) -> None:
    _C.set_tuned_gemms(json.dumps([ENTRY]))
    with pytest.raises(ValueError, match=reason):
        _C.set_tuned_gemms(text)
    assert json.loads(_C.tuned_gemms()) == [ENTRY]
