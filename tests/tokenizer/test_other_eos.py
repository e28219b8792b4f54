"""Tokenizers on Llama's SentencePiece model whose EOS is a token of their own, as Phi-3's is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastchat.train.train as original
import pytest
import torch
from transformers import AddedToken, AutoTokenizer

import fastsft.train as ours
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import MODES, hf_tokenizer, human_gpt

WIDTH = 96
RECORDS = [{"id": "a", "conversations": human_gpt("Where is it?", "In Peru.", "Who says so?", "I do.")}]
TEXT = "It is</s> Paris.<|end|><|endoftext|> </s></s>word<s>"


def another_eos(tokenizer: Any) -> None:
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})


def as_phi3(tokenizer: Any) -> None:
    """`</s>` is added, not special, and strips the space on its right."""
    marks = {"additional_special_tokens": ["<|end|>", "<|user|>"], "eos_token": "<|endoftext|>"}
    tokenizer.add_special_tokens(marks)
    tokenizer.add_tokens([AddedToken("</s>", special=False, rstrip=True, normalized=False)])


def a_special_piece(tokenizer: Any) -> None:
    """`</s>` is an additional special token."""
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>", "additional_special_tokens": ["</s>"]})


CHANGES = (another_eos, as_phi3, a_special_piece)


@pytest.fixture(params=MODES)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return hf_tokenizer(request.param, WIDTH)


@pytest.mark.parametrize("change", CHANGES)
def test_labels_are_fastchats(change: Callable[[Any], None], tokenizer: Any, tmp_path: Path) -> None:
    change(tokenizer)
    file = tmp_path / "data.json"
    file.write_text(json.dumps(RECORDS), "utf-8")
    found, expected = [
        module.make_supervised_data_module(tokenizer, module.DataArguments(data_path=str(file)))
        for module in (ours, original)
    ]
    for name in ("input_ids", "labels"):
        row = expected["train_dataset"][0][name]
        assert torch.equal(found["train_dataset"][0][name], row)
    assert (row == tokenizer.convert_tokens_to_ids("</s>")).sum() == 2


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_texts_are_those_of_the_object(
    change: Callable[[Any], None], saved: bool, tokenizer: Any, tmp_path: Path
) -> None:
    change(tokenizer)
    if saved:
        tokenizer.save_pretrained(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path, use_fast=False)
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert native.encode(TEXT.encode()) == ids
    assert ids.count(2) == 3
    for skips in (False, True):
        plain = {"skip_special_tokens": skips, "clean_up_tokenization_spaces": False}
        assert native.decode(ids, skips) == tokenizer.decode(ids, **plain)
