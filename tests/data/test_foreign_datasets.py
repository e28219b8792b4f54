"""Data sets of FastChat, of `datasets` and of torch in the Trainer: all train the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.data import SupervisedDataset
from fastsft.data.batch_reads import BatchReader, join_batches
from fastsft.data.collators import Collation
from fastsft.data.epoch_order import evaluation_order
from fastsft.data.token_rows import TokenRows
from golden_text import hf_tokenizer, read_records

WIDTH = 96


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return hf_tokenizer("llama2_legacy", WIDTH)


@pytest.fixture(scope="module")
def ours(tokenizer: Any) -> TokenRows:
    return TokenRows.from_dataset(SupervisedDataset(records(), tokenizer), WIDTH)


def records() -> list[Any]:
    return read_records("dummy_conversation")[:6]


def same_rows(dataset: Any, expected: TokenRows) -> None:
    """What an evaluation would read of `dataset`."""
    rows = TokenRows.from_dataset(dataset, WIDTH)
    assert rows.is_read and rows.padded_length == WIDTH and len(rows) == len(expected) == 6
    args = TrainingArguments("unused", use_cpu=True, per_device_eval_batch_size=3)
    reader = BatchReader(
        args, dataset, Collation(None), evaluation_order(args, dataset, None), 3, training=False,
        sets_epoch=False,
    )  # fmt: skip
    native, numbers = join_batches([[batch] for batch in reader.read().rest()], None)
    assert numbers == list(range(6)) and sum(expected.target_counts) > 20
    for row in range(len(expected)):
        assert native.ids(row).tolist() == expected.native.ids(row).tolist()
        assert native.learned(row) == expected.native.learned(row)


@pytest.mark.parametrize("kind", ["SupervisedDataset", "LazySupervisedDataset"])
def test_fastchats_own_data_sets(tokenizer: Any, ours: TokenRows, kind: str) -> None:
    from fastchat.train import train as fastchat

    fastchat.local_rank = 0
    dataset = getattr(fastchat, kind)(records(), tokenizer)
    same_rows(dataset, ours)


class Torch(torch.utils.data.Dataset):
    """Rows of lists, with columns that nobody asked for."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**self.items[row], "source": "a file"}


@pytest.mark.parametrize("kind", ["torch", "lists", "datasets", "datasets as tensors"])
def test_rows_of_other_libraries(tokenizer: Any, ours: TokenRows, kind: str) -> None:
    source = SupervisedDataset(records(), tokenizer)
    items = [{name: value.tolist() for name, value in source[row].items()} for row in range(6)]
    dataset: Any = Torch(items) if kind == "torch" else items
    if kind.startswith("datasets"):
        dataset = pytest.importorskip("datasets").Dataset.from_list(items)
        if kind.endswith("tensors"):
            dataset.set_format("torch")
    same_rows(dataset, ours)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([]), "a length and rows by number, got list_iterator"),
        ({"train": []}, "expected one data set, got a dictionary of train"),
        ([{"input_ids": [1], "text": "a"}], "row 0: expected input_ids and labels, got input_ids, text"),
        ([{"input_ids": [1, 2], "labels": [1]}], r"of one length, got \[2\] and \[1\]"),
        ([{"input_ids": [[1, 2]], "labels": [[1, 2]]}], r"of one dimension, got the shape \[1, 2\]"),
    ],
)
def test_what_is_no_data_set(dataset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenRows.from_dataset(dataset, 8)
