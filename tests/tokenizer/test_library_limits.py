"""A tokenizer.json that the library runs: it stops within its limits, and nothing of it ends this process."""

from __future__ import annotations

import base64
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.runtime.worker import Worker
from fastsft.tokenizer.json_tokenizer import load_json_tokenizer
from fastsft.tokenizer.library_tokenizer import (
    LibraryProcess,
    check_growth,
    check_patterns,
    library_tokenizer,
)
from fastsft.tokenizer.settings import TokenizerSettings

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}


def file(**changes: Any) -> str:
    return json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None, "model": WORDS, **changes,
    })  # fmt: skip


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict[str, str], text: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": text}


def load(text: str) -> Any:
    return library_tokenizer(text, TokenizerSettings(), "model/tokenizer.json")


def refused(text: str, data: str = "a") -> str:
    """Why the file, or a text with it, is refused; a sentence of one line."""
    with pytest.raises(ValueError) as caught:
        load(text).encode(data)
    said = str(caught.value)
    assert "tokenizer.json" in said and "\n" not in said
    return said


def test_what_the_library_says_of_a_text() -> None:
    ours = load(file(pre_tokenizer={"type": "Whitespace"}))
    assert ours.encode("a b \u00e9 a") == [0, 1, 2, 0]
    assert ours.encode_with_offsets("a \u00e9 b")[1] == [(0, 1), (1, 4), (4, 6)]
    assert ours.decode([0, 1], False) == "a b"
    assert (ours.vocab_size, ours.find_token("b"), ours.token_text(1)) == (3, 1, "b")
    assert ours.find_token("c") == -1
    with pytest.raises(ValueError, match="token id 3 is not in the vocabulary"):
        ours.token_text(3)


@pytest.mark.parametrize(
    "pattern", ["((a+))+$", "(a+)+", "(?:(?:a*)){2,}", "(x(a+)y)*", "((a|b)+)+", "(a{2,})+"]
)
def test_a_repeated_repeat_is_refused_before_it_runs(pattern: str) -> None:
    assert "repeats a repeated group" in refused(file(pre_tokenizer=split(pattern)))
    assert "repeats a repeated group" in refused(file(normalizer=replace({"Regex": pattern}, "x")))


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?",
        r"\d{1,3}(?=(\d{3})*\b)",
        r"[(+)]+a",
        r"\(a+\)+",
        r"(a|b)+",
    ],
)
def test_usual_patterns_pass(pattern: str) -> None:
    check_patterns({"pre_tokenizer": split(pattern)})


@pytest.mark.parametrize("pattern", ["(a|a)+$", "(a|aa)+$", "(a?a?)+$", "(?=(a|aa)+$)"])
def test_a_pattern_that_never_ends_is_stopped(pattern: str) -> None:
    """The library panics when it has tried long enough, or its process is ended."""
    assert refused(file(pre_tokenizer=split(pattern)), "a" * 3000 + "b").startswith("model/tokenizer.json: ")


def test_doublings_are_counted() -> None:
    for one in (replace({"String": "a"}, "aa"), replace({"Regex": "."}, "aa")):
        text = file(normalizer={"type": "Sequence", "normalizers": [one] * 40})
        assert "normalizer: its replacements make" in refused(text)
        assert "decoder: its replacements make" in refused(
            file(decoder={"type": "Sequence", "decoders": [one] * 40})
        )
    for usual in (replace({"String": " "}, "\u2581"), replace({"Regex": " {2,}"}, " ")):
        check_growth({"normalizer": {"type": "Sequence", "normalizers": [usual] * 3}})


def test_what_no_count_sees_ends_its_process_alone() -> None:
    """NFKD makes 18 characters of one; the memory of the process is its limit, too."""
    text = file(
        normalizer={
            "type": "Sequence",
            "normalizers": [replace({"String": "b"}, "\ufdfa" * 200), {"type": "NFKD"}],
        }
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    said = refused(text, "b" * 2_000_000)
    assert "ended with status" in said or "takes more than" in said
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 2 << 20)  # KiB


@pytest.mark.parametrize(
    "charsmap", [b"", b"\0" * 8, b"\xff" * 64, b"\x04\0\0\0abcd\0\xff\xff", os.urandom(500)]
)
def test_a_charsmap_of_rubbish(charsmap: bytes) -> None:
    text = file(
        normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    )
    try:
        load(text).encode("a b \u00e9")
    except ValueError as error:
        assert "tokenizer.json" in str(error) and "\n" not in str(error)


def test_a_charsmap_that_is_no_base64() -> None:
    refused(file(normalizer={"type": "Precompiled", "precompiled_charsmap": "!!"}))


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 100},
        {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 0},
        {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "[UNK]"},
        {"type": "Unigram", "vocab": [], "unk_id": 7},
        {"type": "Nonsense"},
    ],
)  # fmt: skip
def test_models_without_what_they_need(model: Any) -> None:
    refused(file(model=model), "zz")


def test_a_process_that_was_ended_is_started_again() -> None:
    process = LibraryProcess({"text": file(), "added": []}, "here")
    assert process._worker is not None
    process._worker.process.kill()
    with pytest.raises(ValueError, match="here: the tokenizers library ended with status"):
        process.encode("a", False)
    assert process.encode("a", False) == [(0, 0, 1)]
    process.close()


def test_after_a_fork_the_child_has_a_process_of_its_own() -> None:
    process = LibraryProcess({"text": file(), "added": []}, "here")
    child = os.fork()
    if child == 0:
        os._exit(0 if process.encode("b", False) == [(1, 0, 1)] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process.encode("a", False) == [(0, 0, 1)]


def test_an_interrupt_leaves_no_half_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    process = LibraryProcess({"text": file(), "added": []}, "here")

    def interrupt(*_: Any) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Worker, "receive", interrupt)
        process.encode("a", False)
    assert process.encode("b", False) == [(1, 0, 1)]


def test_the_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(file(pre_tokenizer=split("(a|a)+$")))
    tokenizer = load_json_tokenizer(path, TokenizerSettings())
    assert isinstance(tokenizer, _C.LibraryTokenizer)
    with pytest.raises(ValueError, match=str(path)):
        tokenizer.encode("a" * 3000 + "b")
