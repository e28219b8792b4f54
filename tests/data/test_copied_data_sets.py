"""Copies of the data sets train as copies of FastChat's, also after a pickle in another process."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastchat.train.train as fastchat
import pytest
import torch

import fastsft.data
from golden_text import hf_tokenizer, read_records
from trainer_pairs import check_equal, losses, model, ours, theirs, unrounded

LENGTH = 96
KINDS = ("SupervisedDataset", "LazySupervisedDataset")
READ = """
import pickle, sys
dataset = pickle.load(open(sys.argv[1], "rb"))
pickle.dump([{name: part.tolist() for name, part in dataset[row].items()} for row in range(len(dataset))],
            open(sys.argv[2], "wb"))
"""


@pytest.fixture(autouse=True)
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)
    fastchat.local_rank = 0


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return hf_tokenizer("llama2_legacy", LENGTH)


def made(module: Any, kind: str, tokenizer: Any) -> Any:
    return getattr(module, kind)(read_records("dummy_conversation")[:8], tokenizer)


def copied(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    if module is fastsft.data:
        dataset.untouched_rows()  # as a Trainer asks
    return copy.deepcopy(dataset)


def edited_copy(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = copied(module, kind, tokenizer)
    for row in range(8):
        dataset[row]["labels"][:60] = -100
    return dataset


def copy_of_edited(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    for row in range(8):
        dataset[row]["labels"][:60] = -100
    return copy.deepcopy(dataset)


def edited_source(module: Any, kind: str, tokenizer: Any) -> Any:
    dataset = made(module, kind, tokenizer)
    other = copy.deepcopy(dataset)
    for row in range(8):
        dataset[row]["labels"][:60] = -100
    return other


def pickled(module: Any, kind: str, tokenizer: Any) -> Any:
    return pickle.loads(pickle.dumps(copied(module, kind, tokenizer)))


@pytest.mark.variants("edited_copy-Lazy", "pickled-Sup")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [copied, edited_copy, copy_of_edited, edited_source, pickled])
def test_copies_train_as_fastchats(
    case: Callable[[Any, str, Any], Any], kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    found = []
    for module, trainer_of in ((fastchat, theirs), (fastsft.data, ours)):
        dataset = case(module, kind, tokenizer)
        extra = {"model_max_length": LENGTH} if trainer_of is ours else {}
        own = model(LENGTH, vocabulary=32_001)
        found.append(losses(trainer_of(tmp_path / module.__name__, dataset, module=own, **extra)))
    check_equal(found[1], found[0])


def test_copies_share_rows_alone(tokenizer: Any) -> None:
    dataset = made(fastsft.data, KINDS[0], tokenizer)
    other = copy.deepcopy(dataset)
    assert other.native is dataset.native and other.untouched_rows() is other.native
    other.labelling["template"] = "another"
    assert "template" not in dataset.labelling
    again = pickle.loads(pickle.dumps(dataset))
    assert again.native.checksum() == dataset.native.checksum()
    assert again.report.to_json() == dataset.report.to_json()
    assert again.native.masked_id == dataset.native.masked_id


@pytest.mark.variants("[Lazy")
@pytest.mark.parametrize("kind", KINDS)
def test_another_process_reads_the_items_of_fastchat(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    dataset = made(fastsft.data, kind, tokenizer)
    dataset.untouched_rows()
    (tmp_path / "in").write_bytes(pickle.dumps(dataset))
    files = [str(tmp_path / "in"), str(tmp_path / "out")]
    subprocess.run([sys.executable, "-c", READ, *files], check=True, timeout=300)
    expected = made(fastchat, kind, tokenizer)
    found = pickle.loads((tmp_path / "out").read_bytes())
    assert found == [
        {name: part.tolist() for name, part in expected[row].items()} for row in range(len(expected))
    ]


@pytest.mark.parametrize("policy", ["fastchat", "spans"])
@pytest.mark.parametrize("lazy", [False, True])
def test_copies_of_files_keep_their_labels(policy: str, lazy: bool, tokenizer: Any, tmp_path: Path) -> None:
    """And label by the same settings whatever is changed in them, twice."""
    (tmp_path / "data.json").write_text(json.dumps(read_records("dummy_conversation")[:8]))
    arguments = SimpleNamespace(
        data_path=str(tmp_path / "data.json"),
        eval_data_path=None,
        lazy_preprocess=lazy,
        mask_policy=policy,
        template="vicuna_v1.1" if policy == "spans" else None,
    )
    dataset = fastsft.data.make_supervised_data_module(tokenizer, arguments)["train_dataset"]
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        for _ in range(2):
            other.untouched_rows()
            assert all(torch.equal(other[row]["labels"], dataset[row]["labels"]) for row in range(8))
            if lazy:
                other.raw_data = copy.deepcopy(list(other.raw_data))
                other.raw_data[0]["conversations"][0]["value"] += " and"
                other.cached_data_dict.clear()
                native = other.untouched_rows()
                assert native.labels(1).tolist() == dataset.native.labels(1).tolist()
                other.raw_data = list(dataset.raw_data)
                other.cached_data_dict.clear()
