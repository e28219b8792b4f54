"""Data sets made by a script's own `preprocess`: the items of FastChat's classes with the same function."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import fastsft.train as train
from e2e.command_line import TRAINER

KINDS = ("SupervisedDataset", "LazySupervisedDataset")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = AutoTokenizer.from_pretrained(
        TRAINER / "model_untied", use_fast=False, model_max_length=64, padding_side="right"
    )
    made.pad_token = made.unk_token
    return made


@pytest.fixture(scope="module")
def records() -> Any:
    return json.loads((TRAINER / "data" / "first48.json").read_text())[:6]


def reverse(sources: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Conversations from their end, of which everything is learned."""
    texts = ["|".join(message["value"] for message in reversed(source)) for source in sources]
    ids = tokenizer(
        texts,
        return_tensors="pt",
        padding="max_length",
        max_length=tokenizer.model_max_length,
        truncation=True,
    ).input_ids
    mask = ids.ne(tokenizer.pad_token_id)
    return {"input_ids": ids, "labels": torch.where(mask, ids, -100), "attention_mask": mask, "more": ids}


def same_items(ours: Any, theirs: Any) -> bool:
    items = [(ours[row], theirs[row]) for row in range(len(theirs))]
    return len(ours) == len(theirs) and all(
        list(one) == list(other) and all(one[name].equal(other[name]) for name in other)
        for one, other in items
    )


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_what_the_function_makes(
    kind: str, tokenizer: Any, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module("fastchat.train.train")
    for module in (original, train):
        monkeypatch.setattr(module, "preprocess", reverse)
    made = [getattr(module, kind)(records, tokenizer=tokenizer) for module in (train, original)]
    assert same_items(*made)


def test_a_lazy_data_set_asks_for_the_name_at_each_item(
    tokenizer: Any, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.import_module("fastchat.train.train")
    made = [module.LazySupervisedDataset(records, tokenizer=tokenizer) for module in (train, original)]
    assert made[0][0]["labels"].equal(made[1][0]["labels"])
    for module in (original, train):
        monkeypatch.setattr(module, "preprocess", reverse)
    assert same_items(*made)


def test_a_lazy_data_set_of_a_file_asks_for_the_name_that_is_bound_later(
    tokenizer: Any, records: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps(records))
    made = []
    for module in (train, importlib.import_module("fastchat.train.train")):
        data_args = module.DataArguments(data_path=str(file), lazy_preprocess=True)
        found = module.make_supervised_data_module(tokenizer=tokenizer, data_args=data_args)
        made.append(found["train_dataset"])
        monkeypatch.setattr(module, "preprocess", reverse)
    assert len(made[0]) == len(records)
    assert same_items(*made)


@pytest.mark.parametrize("result", [{"input_ids": [[1]], "labels": [[1]]}, None])
def test_a_function_that_returns_something_else(
    result: Any, tokenizer: Any, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "preprocess", lambda sources, tokenizer: result)
    with pytest.raises(ValueError, match="expected a dictionary with input_ids, labels, attention_mask"):
        train.SupervisedDataset(records, tokenizer)
