"""Functions of data that a script gave another code: the name and the function object are ours."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import fastchat.train.train as fastchat
import pytest
import torch

import fastsft.data
from golden_text import hf_tokenizer, read_records
from trainer_pairs import check_equal, losses, model, ours, theirs, unrounded

LENGTH = 96
KINDS = ("SupervisedDataset", "LazySupervisedDataset")


def preprocess(sources: Any, tokenizer: Any) -> Any:
    made = preprocess_before(sources, tokenizer)  # type: ignore[name-defined]  # noqa: F821
    made["labels"][:, :60] = -100
    return made


def __getitem__(self: Any, row: int) -> Any:
    return getitem_before(self, (row + 1) % 4)  # type: ignore[name-defined]  # noqa: F821


def gives(function: Any, code: Any, name: str, patch: pytest.MonkeyPatch) -> None:
    """`code` becomes that of `function`; what it was can be called as `name` where it looks names up."""
    was = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    patch.setitem(function.__globals__, name, was)
    patch.setattr(function, "__code__", code.__code__)


def trained(module: Any, kind: str, folder: Path) -> list[float]:
    dataset = getattr(module, kind)(
        read_records("dummy_conversation")[:8], hf_tokenizer("llama2_legacy", LENGTH)
    )
    make, extra = (theirs, {}) if module is fastchat else (ours, {"model_max_length": LENGTH})
    own = model(LENGTH, vocabulary=32_001)
    return losses(make(folder / module.__name__, dataset, module=own, **extra))


@pytest.mark.variants("preprocess-SupervisedDataset")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changed", ["preprocess", "__getitem__"])
def test_another_code_counts(
    changed: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unrounded(monkeypatch)
    fastchat.local_rank = 0
    before = trained(fastsft.data, kind, tmp_path)
    found = []
    for module in (fastchat, fastsft.data):
        if changed == "preprocess":
            gives(module.preprocess, preprocess, "preprocess_before", monkeypatch)
        else:
            gives(getattr(module, kind).__getitem__, __getitem__, "getitem_before", monkeypatch)
        found.append(trained(module, kind, tmp_path))
    check_equal(found[1], found[0])
    assert before != pytest.approx(found[0], rel=1e-4)
    monkeypatch.undo()
    assert torch.allclose(torch.tensor(before), torch.tensor(trained_again(kind, tmp_path, monkeypatch)))


def trained_again(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> list[float]:
    unrounded(patch)
    return trained(fastsft.data, kind, folder)


def test_other_default_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = fastsft.data.LazySupervisedDataset(
        read_records("dummy_conversation")[:2], hf_tokenizer("llama2_legacy", LENGTH)
    )
    assert dataset.untouched_rows() is not None
    monkeypatch.setattr(fastsft.data.LazySupervisedDataset.__getitem__, "__defaults__", (0,))
    assert dataset.untouched_rows() is None
