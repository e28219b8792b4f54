"""Rows with several label keys: the one that counts is that of transformers' collator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import default_collate

import fastsft
from trainer_pairs import FLAGS, VOCABULARY, WIDTH, check_equal, item, losses, model, unrounded

LEARNED = {"labels": 2, "label": 4, "label_ids": 6}  # last tokens of a row


def tokenizer() -> Any:
    words = WordLevel({str(word): word for word in range(VOCABULARY)}, unk_token="1")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token="0", unk_token="1", eos_token="2", bos_token="3"
    )


def row(number: int, names: tuple[str, ...], *, as_lists: bool) -> dict[str, Any]:
    whole = item(number)
    length = int(whole["attention_mask"].sum())
    found = {"input_ids": whole["input_ids"], "attention_mask": whole["attention_mask"].long()}
    for name in names:
        labels = whole["input_ids"].clone()
        labels[: length - LEARNED[name]] = labels[length:] = -100
        found[name] = labels
    return {name: value.tolist() for name, value in found.items()} if as_lists else found


# How batches are made: the collator, and whether a tokenizer is given without one.
HOW: dict[str, Any] = {
    "stacked": lambda: (None, None),
    "padded by the tokenizer": lambda: (None, tokenizer()),
    "padded": lambda: (transformers.DataCollatorWithPadding(tokenizer()), None),
    "padded as sequences": lambda: (transformers.DataCollatorForSeq2Seq(tokenizer()), None),
    "torch's": lambda: (default_collate, None),
}
SEVERAL = [
    ("labels", "label"),
    ("label", "labels"),
    ("label_ids", "labels"),
    ("labels", "label", "label_ids"),
]


def trained(kind: Any, args: Any, how: str, names: tuple[str, ...]) -> list[float]:
    collator, processing = HOW[how]()
    rows = [row(number, names, as_lists=how == "stacked") for number in range(4)]
    return losses(kind(model(), args, collator, rows, processing_class=processing))


@pytest.mark.covering
@pytest.mark.parametrize("names", SEVERAL, ids="+".join)
@pytest.mark.parametrize("how", HOW)
def test_the_key_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, names: tuple[str, ...]
) -> None:
    unrounded(monkeypatch)
    flags = {**FLAGS, "max_steps": 2}
    expected = trained(
        transformers.Trainer, transformers.TrainingArguments(str(tmp_path / "a"), **flags), how, names
    )
    args = fastsft.TrainingArguments(str(tmp_path / "b"), model_max_length=WIDTH, plot_loss=False, **flags)
    check_equal(trained(fastsft.Trainer, args, how, names), expected)


def test_a_key_that_the_collator_leaves_out_is_none(tmp_path: Path) -> None:
    """transformers: the model did not return a loss."""
    args = fastsft.TrainingArguments(str(tmp_path), model_max_length=WIDTH, plot_loss=False, **FLAGS)
    with pytest.raises(ValueError, match=r"row 0: expected input_ids and labels.*takes no label_ids"):
        trained(fastsft.Trainer, args, "padded as sequences", ("label_ids",))
