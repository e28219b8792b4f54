"""Rows with positions, labels and masks of their own: loss and gradients against autograd."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines import new_engine, train_step
from fastsft import _C
from native_families import CONFIGS
from reference import Decoder, cross_entropy
from tiny_models import make_engine, weights_of, write_model
from tolerances import TOLERANCES, assert_close, relative_error

IGNORE, VOCABULARY = -100, 70


class Row:
    """An item: everything but the length is optional."""

    def __init__(self, length: int, seed: int, **parts: Any) -> None:
        generator = np.random.default_rng(seed)
        self.ids = generator.integers(0, VOCABULARY, length)
        self.labels = self.ids.copy()
        if parts.get("other_labels"):
            self.labels = generator.integers(0, VOCABULARY, length)
        self.labels[list(parts.get("ignored", ()))] = IGNORE
        self.positions = np.array(parts["positions"]) if "positions" in parts else None
        self.mask = None
        if "masked" in parts:
            self.mask = np.ones(length, bool)
            self.mask[list(parts["masked"])] = False

    def append(self, dataset: Any) -> None:
        dataset.append_item(self.ids, self.labels, self.positions, self.mask, row=len(dataset))

    def boundaries(self) -> list[int]:
        """Where sequences begin, and the end."""
        size = len(self.ids)
        if self.positions is None or self.mask is not None:
            return [0, size]
        jumps = [i for i in range(1, size) if self.positions[i] != self.positions[i - 1] + 1]
        return [0, *jumps, size]

    def loss(self, decoder: Decoder, weight: float) -> Tensor:
        targets = torch.from_numpy(np.append(self.labels[1:], IGNORE))
        return cross_entropy(self.logits(decoder), targets, torch.full(targets.shape, weight))

    def logits(self, decoder: Decoder) -> Tensor:
        counted = np.arange(len(self.ids)) if self.positions is None else self.positions
        is_key = None if self.mask is None else torch.from_numpy(self.mask)
        return decoder.logits(
            torch.from_numpy(self.ids), self.boundaries(), torch.from_numpy(counted), is_key
        )


ROWS = [
    Row(9, 0, ignored=range(3)),  # plain
    Row(12, 1, ignored=range(4), masked=[2, 6, 7]),  # masked tokens that are learned from
    Row(12, 2, ignored=[0, 1, 6, 7], masked=[1, 5, 6]),  # and one that is not
    Row(11, 3, positions=[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]),
    Row(10, 4, ignored=[0, 1, 2, 3, 4, 5], positions=[4, 5, 6, 0, 1, 2, 3, 7, 8, 9]),
    Row(8, 5, other_labels=True, ignored=[0]),
    Row(10, 6, masked=[0, 1, 2], ignored=[0, 1, 2, 3]),  # padded on the left
    Row(10, 7, masked=[0, 1, 2], ignored=[0]),  # tokens that see nothing are learned from
    Row(7, 8, masked=[5, 6]),  # padding that is learned
    Row(9, 9, positions=range(20, 29), masked=[4]),
    Row(6, 10, ignored=range(6), masked=[1]),  # teaches nothing
    Row(9, 11),
]


def dataset_of(rows: list[Row]) -> Any:
    dataset = _C.TokenDataset()
    for row in rows:
        row.append(dataset)
    return dataset


def expected_of(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], rows: list[Row], scales: np.ndarray
) -> tuple[float, dict[str, Tensor]]:
    exact = {name: tensor.double().requires_grad_() for name, tensor in weights.items()}
    decoder = Decoder(config, exact)
    total = torch.stack([row.loss(decoder, s) for row, s in zip(rows, scales, strict=True)]).sum()
    total.backward()
    return total.item(), {name: tensor.grad for name, tensor in exact.items() if tensor.grad is not None}


def assert_same_step(directory: Path, rows: list[Row], use_cudnn: bool = False, **options: Any) -> None:
    engine = make_engine(directory, **options)
    engine.use_cudnn(use_cudnn)
    scales = np.linspace(0.05, 0.15, len(rows))
    loss, found = engine.gradients(dataset_of(rows), np.arange(len(rows)), scales, find_packed=True)
    config = json.loads((directory / "config.json").read_text())
    expected_loss, expected = expected_of(config, weights_of(directory), rows, scales)
    dtype = getattr(torch, options.get("compute_dtype", "float32"))
    assert loss == pytest.approx(expected_loss, rel=20 * TOLERANCES[dtype].loss)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():  # twelve rows of rounding
        assert relative_error(tensor, expected[name]) < 3 * TOLERANCES[dtype].model, name


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_of_all_kinds_in_one_micro_batch(tmp_path: Path, kind: str) -> None:
    assert_same_step(write_model(tmp_path, kind), ROWS)


@pytest.mark.parametrize("kind", ["untied", "mistral"])
@pytest.mark.parametrize("count", [3, 7, len(ROWS)])
def test_the_longest_first_as_for_cudnn(tmp_path: Path, kind: str, count: int) -> None:
    """Conversations are reordered with their masks, positions, labels and weights."""
    assert_same_step(write_model(tmp_path, kind), [*ROWS[9:], *ROWS[:count]], use_cudnn=True)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_each_alone(tmp_path: Path, row: int) -> None:
    assert_same_step(write_model(tmp_path, "untied"), [ROWS[row], ROWS[0]])


@pytest.mark.parametrize("recompute", ["none", "gate_up", "block"])
def test_recomputed(tmp_path: Path, recompute: str) -> None:
    assert_same_step(write_model(tmp_path, "qwen3"), ROWS, recompute=recompute)


def test_bfloat16(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "untied", "bfloat16")
    assert_same_step(directory, ROWS, compute_dtype="bfloat16")


def test_logits_of_whole_rows(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "mistral")
    engine, dataset = make_engine(directory), dataset_of(ROWS)
    config = json.loads((directory / "config.json").read_text())
    decoder = Decoder(config, {name: tensor.double() for name, tensor in weights_of(directory).items()})
    found = engine.row_logits(dataset, np.arange(len(ROWS)), find_packed=True).split(list(dataset.lengths()))
    for number, (row, logits) in enumerate(zip(ROWS, found, strict=True)):
        first = dataset.leading(number)
        assert first == (3 if number == 6 else 0)
        assert_close(logits, row.logits(decoder)[first : first + len(logits)], "model", f"row {number}")


def test_packed_sequences_are_found_where_asked_for(tmp_path: Path) -> None:
    engine, rows = make_engine(write_model(tmp_path, "untied")), [ROWS[3]]
    losses = [engine.loss(dataset_of(rows), [0], [1.0], find_packed=packed) for packed in (True, False, True)]
    assert losses[0] == losses[2] and abs(losses[0] - losses[1]) > 1e-3


def test_the_same_bits_again(tmp_path: Path) -> None:
    directory, dataset = write_model(tmp_path, "untied"), dataset_of(ROWS)
    steps = []
    for _ in range(2):
        engine = make_engine(directory)
        steps.append(
            [
                train_step(engine, dataset, [range(6), range(6, 12)], [[0.1] * 6] * 2, learning_rate=0.01)
                for _ in range(2)
            ]
        )
    for first, second in zip(*steps, strict=True):
        assert (first.loss, first.grad_norm) == (second.loss, second.grad_norm)


def test_more_queries_than_a_block_of_scores_holds(tmp_path: Path) -> None:
    """2^24 scores are computed at a time: of 16 heads and 1100 tokens, 953 queries."""
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 4,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 2048,
    }  # fmt: skip
    engine = new_engine(json.dumps(config), compute_dtype="float32")
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.3 for name, shape in engine.parameter_shapes.items()
    }
    for name, tensor in weights.items():
        engine.set_parameter(name, tensor)
    engine.publish()
    rows = [Row(1100, 0, masked=range(3, 1100, 7))]
    loss, found = engine.gradients(dataset_of(rows), [0], [0.01])
    expected_loss, expected = expected_of(config, weights, rows, np.array([0.01]))
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, tensor in found.items():
        assert_close(tensor, expected[name], "model", name)


def test_checksums_tell_general_rows_apart() -> None:
    ids = np.arange(6)
    rows = [
        {}, {"positions": ids + 1}, {"positions": ids[::-1]}, {"positions": ids + 1, "has_mask": True},
        {"mask": [1, 0, 1, 1, 1, 1]}, {"mask": [1, 1, 0, 1, 1, 1]}, {"labels": ids + 1},
    ]  # fmt: skip
    sums = []
    for parts in rows:
        dataset = _C.TokenDataset()
        dataset.append_item(ids, **{"labels": ids, "row": 0, **parts})
        sums.append(dataset.checksum())
    assert all(one != other for one, other in itertools.combinations(sums, 2))
