"""Directories and objects with a tokenizer.json, side by side with transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from byte_level_files import content, json_text, write_directory
from fastsft import data
from fastsft.data import conversation_labels
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import CONVERSATIONS, read_records, read_texts

END = "<|endoftext|>"
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024}),
    "gpt2_prefix": ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}),
    "qwen2": ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "chat_template": "{{ x }}"}),
    "llama3": (
        "cl100k",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "padding_side": "left",
        },
    ),
    "pad_added": (
        "gpt2",
        {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "eos_token": END},
    ),
    "decoder": (
        "gpt2",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": {
                "50256": {"content": END, "rstrip": True, "special": True, "normalized": False},
                "50257": {"content": "<|im_start|>", "special": True, "normalized": False},
            },
            "additional_special_tokens": ["<|im_start|>", "<|new|>"],
            "eos_token": END,
        },
    ),
}
CONFIGS["flags"] = (
    "gpt2",
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            "50256": {"content": END, "special": True, "normalized": False},
            "50257": {"content": "<|im_start|>", "special": True, "normalized": False},
        },
        # Flags of a named token that the decoder knows do not count, others do.
        "eos_token": {"content": END, "lstrip": True, "rstrip": True, "__type": "AddedToken"},
        "additional_special_tokens": [
            {"content": "<|im_start|>", "rstrip": True, "normalized": False, "__type": "AddedToken"},
            {"content": END, "rstrip": True, "normalized": False, "__type": "AddedToken"},
        ],
    },
)
# Without a decoder the flags of the file's own tokens stand. New tokens get ids in the order of the names.
CONFIGS["order"] = (
    "gpt2",
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|new|>",
        "eos_token": {"content": END, "lstrip": True, "rstrip": True, "__type": "AddedToken"},
        "pad_token": {"content": "[PAD]", "lstrip": True, "normalized": False, "__type": "AddedToken"},
        "additional_special_tokens": ["<|im_start|>"],
    },
)
ATTRIBUTES = (
    *("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id", "pad_token", "eos_token"),
    *("model_max_length", "padding_side", "chat_template"),
)
PROBES = ("Hello, world!", f"a {END}  b{END}", "<|im_start|>user\n<|new|> x [PAD]", "<|begin_of_text|> y", "")


def make(name: str, folder: Path) -> tuple[Tokenizer, Any]:
    from transformers import AutoTokenizer

    vocabulary, config = CONFIGS[name]
    write_directory(folder, json_text(vocabulary), config)
    return Tokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.variants("[llama3]", "[qwen2]", "[pad_added]", "[order]", "[decoder]")
@pytest.mark.parametrize("name", CONFIGS)
def test_directory(name: str, tmp_path: Path) -> None:
    ours, theirs = make(name, tmp_path)
    assert len(ours) == len(theirs)
    for attribute in ATTRIBUTES:
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    for text in PROBES:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=True) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False), text
    object_ = find_native_tokenizer(theirs)
    for text in [*PROBES, *read_texts("tokenizer_edge_texts")[:60]]:
        assert object_.encode(text.encode()) == theirs.encode(text, add_special_tokens=False)
    named = (object_.named.bos, object_.named.eos, object_.named.unk, object_.named.pad)
    ids = (theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.pad_token_id)
    assert named == tuple(-1 if i is None else i for i in ids)


def test_saved_directory_keeps_every_file(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = write_directory(tmp_path / "a", json_text("gpt2"), CONFIGS["pad_added"][1])
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "merges.txt").write_text("#version: 0.2\n")
    names = Tokenizer.from_pretrained(source).save_pretrained(tmp_path / "b")
    assert set(names) >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"}
    assert (tmp_path / "b" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    again = Tokenizer.from_pretrained(tmp_path / "b")
    assert again.chat_template == "{{ messages }}"
    assert again.encode("a[PAD]b") == AutoTokenizer.from_pretrained(tmp_path / "b").encode("a[PAD]b")


FOREIGN: dict[str, dict[str, Any]] = {
    "pattern": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        }
    },
    "normalizer": {"normalizer": {"type": "Lowercase"}},
    "digits": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        }
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_native_runs_in_the_library(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoTokenizer

    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": "[PAD]"}
    write_directory(tmp_path, json.dumps({**content("gpt2"), **FOREIGN[name]}), config)
    with caplog.at_level(logging.WARNING, "fastsft"):
        ours = Tokenizer.from_pretrained(tmp_path)
    assert "the tokenizers library runs it" in caplog.text
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(ours), ours.pad_token_id) == (len(theirs), theirs.pad_token_id)
    for text in [*PROBES, *read_texts("tokenizer_edge_texts")[:80]]:
        ids, offsets = ours.encode_with_offsets(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        if ids:
            assert b"".join(text.encode()[a:b] for a, b in offsets) == text.encode()
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
    assert ours.convert_tokens_to_ids("hello") == theirs.convert_tokens_to_ids("hello")
    with pytest.raises(ValueError, match="token id 999999 is not in the vocabulary"):
        ours.decode([999999])


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?:x|a*)*b", "a" * 20_000])
def test_patterns_that_may_never_end_are_refused(pattern: str, tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    write_directory(tmp_path, json.dumps({**content("gpt2"), "pre_tokenizer": split}), {})
    with pytest.raises(ValueError, match=r"tokenizer\.json: (the|a) pattern"):
        Tokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama3"])
def test_preprocess_of_a_fast_object_equals_calling_it(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import AutoTokenizer

    vocabulary, config = CONFIGS[name]
    config = {**config, "padding_side": "right", "additional_special_tokens": ["</s>"]}
    write_directory(tmp_path, json_text(vocabulary), config)
    theirs = AutoTokenizer.from_pretrained(tmp_path, model_max_length=256)
    theirs.pad_token = theirs.eos_token
    theirs.legacy = True  # which FastChat asks for from the second turn on
    sources = [record["conversations"] for record in read_records(CONVERSATIONS[0])[:60]]
    assert find_native_tokenizer(theirs) is not None
    native = data.preprocess(sources, theirs)
    monkeypatch.setattr(conversation_labels, "find_native_tokenizer", lambda tokenizer: None)
    called = data.preprocess(sources, theirs)
    for key in ("input_ids", "labels", "attention_mask"):
        assert native[key].equal(called[key]), key
    assert bool((native["labels"] != -100).any())
