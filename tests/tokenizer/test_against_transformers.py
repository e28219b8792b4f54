"""Settings that the goldens do not hold, side by side with the slow LlamaTokenizer."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, hf_tokenizer, read_texts

PARTS = (
    "a",
    "Hello",
    " ",
    "  ",
    "\n",
    "▁",
    "</s>",
    "<s>",
    "<unk>",
    "你好",
    "😀",
    "é",
    "USER:",
    "x" * 40,
    "\t",
    "<",
    "ab " * 3,
)
TEXT = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
LONG_WORD = st.text(alphabet="abcdeéß中▁<>0", max_size=120)


@functools.cache
def both(mode: str) -> tuple[Tokenizer, Any]:
    """Our tokenizer, and transformers'."""
    return Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode), hf_tokenizer(mode)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150, deadline=None)
@given(text=st.one_of(TEXT, LONG_WORD, st.text(max_size=40)))
def test_any_text(mode: str, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    ours, theirs = both(mode)
    ids, offsets = ours.encode_with_offsets(text)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert b"".join(text.encode()[a:b] for a, b in offsets) == text.encode()
    assert ours.encode(text, split_special_tokens=True) == theirs.encode(
        text, add_special_tokens=False, split_special_tokens=True
    )
    assert ours.encode(text, add_special_tokens=True) == theirs.encode(text)


@pytest.mark.covering
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("skip", [False, True])
def test_decode(mode: str, skip: bool) -> None:
    ours, theirs = both(mode)
    for text in read_texts("tokenizer_edge_texts"):
        ids = [1, *theirs.encode(text, add_special_tokens=False), 2]
        for part in (ids, ids[1:], ids[3:]):
            expected = theirs.decode(part, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(part, skip_special_tokens=skip) == expected, text[:80]


def write_directory(folder: Path, mode: str, config: dict[str, Any], files: dict[str, Any]) -> Path:
    shutil.copytree(GOLDEN / "tokenizers" / mode, folder)
    path = folder / "tokenizer_config.json"
    merged = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({k: v for k, v in merged.items() if v != "absent"}))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def added(content: str, **flags: bool) -> dict[str, Any]:
    token = {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    return {**token, "special": True, **flags}


BASE = {"0": added("<unk>"), "1": added("<s>"), "2": added("</s>")}
DIRECTORIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "legacy_absent": ({"legacy": "absent"}, {}),
    "pad_added": ({"pad_token": "[PAD]"}, {"special_tokens_map.json": {"pad_token": "[PAD]"}}),
    "adds_eos": ({"add_eos_token": True}, {}),
    "no_bos": ({"add_bos_token": False}, {}),
    "decoder": ({"added_tokens_decoder": {**BASE, "32000": added("<x>"), "32001": added("<xy>")}}, {}),
    "strips": ({"added_tokens_decoder": {**BASE, "32000": added("<x>", lstrip=True, rstrip=True)}}, {}),
    "strips_eos": ({"added_tokens_decoder": {**BASE, "2": added("</s>", rstrip=True)}}, {}),
    "added_file": ({}, {"added_tokens.json": {"<x>": 32000, "<xy>": 32001}}),
    "additional": ({}, {"special_tokens_map.json": {"additional_special_tokens": ["<x>", "<xy>"]}}),
    "additional_flags": (
        {
            "added_tokens_decoder": {**BASE, "32000": added("<x>")},
            "additional_special_tokens": [
                {**added("<x>", lstrip=True), "__type": "AddedToken"},
                {**added("<s>", lstrip=True), "__type": "AddedToken"},  # a named token keeps its flags
            ],
        },
        {},
    ),
    "named_flags": (
        {"eos_token": {**added("<x>", lstrip=True), "__type": "AddedToken"}},
        {"added_tokens.json": {"<x>": 32000}, "special_tokens_map.json": {}},
    ),
    "plain_added": ({"added_tokens_decoder": {**BASE, "32000": added("<x>", special=False)}}, {}),
}
PROBES = (
    "a <x> b",
    "<x>",
    "  <x>  <xy>b<x",
    "<s>Hi</s> there </s>\n",
    "[PAD] x[PAD]",
    " <xyz> ",
    "\u3000<x>\u00a0c",
    "a \u2581<x>\u2581 \u2581c</s>\u2581",
)


@pytest.mark.covering
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories(name: str, mode: str, tmp_path: Path) -> None:
    from transformers import LlamaTokenizer

    folder = write_directory(tmp_path / "t", mode, *DIRECTORIES[name])
    ours, theirs = Tokenizer.from_pretrained(folder), LlamaTokenizer.from_pretrained(folder)
    assert ours.legacy == theirs.legacy
    assert len(ours) == len(theirs)
    for attribute in (
        "bos_token_id",
        "eos_token_id",
        "unk_token_id",
        "pad_token_id",
        "pad_token",
        "model_max_length",
    ):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    for text in PROBES:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text


def test_save_pretrained_is_read_by_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_nonlegacy", model_max_length=77)
    ours.pad_token = "</s>"
    ours.save_pretrained(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved", use_fast=False)
    assert (theirs.pad_token, theirs.model_max_length, theirs.padding_side) == ("</s>", 77, "right")
    assert theirs.legacy is False
    assert theirs.encode("Hi</s> you") == ours.encode("Hi</s> you", add_special_tokens=True)


def test_save_pretrained_without_changes_keeps_the_bytes(tmp_path: Path) -> None:
    source = GOLDEN / "tokenizers" / "llama2_legacy"
    names = Tokenizer.from_pretrained(source).save_pretrained(tmp_path)
    assert names == ["tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"]
    assert all((tmp_path / name).read_bytes() == (source / name).read_bytes() for name in names)
