"""Byte-level tokenizer.json files: the recorded ones, and a Qwen 2 made from GPT-2's vocabulary."""

from __future__ import annotations

import functools
import gzip
import json
import random
from pathlib import Path
from typing import Any

from fastsft import _C
from golden_text import GOLDEN

NAMES = ("gpt2", "cl100k", "qwen2")
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


@functools.cache
def json_text(name: str) -> str:
    if name == "qwen2":
        return json.dumps(qwen2(), ensure_ascii=False)
    with gzip.open(GOLDEN / "tokenizers" / name / "tokenizer.json.gz", "rt", encoding="utf-8") as file:
        return file.read()


def content(name: str) -> dict[str, Any]:
    return json.loads(json_text(name))


def qwen2() -> dict[str, Any]:
    """GPT-2's vocabulary with the normalizer and the split pattern of Qwen 2."""
    split = content("cl100k")["pre_tokenizer"]
    pattern = split["pretokenizers"][0]["pattern"]
    pattern["Regex"] = pattern["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")
    return {**content("gpt2"), "normalizer": {"type": "NFC"}, "pre_tokenizer": split}


def small_qwen2(merges: int = 1000) -> dict[str, Any]:
    """`qwen2` with GPT-2's first merges alone: opened in no time, and a model of it is trained in no time."""
    whole = content("qwen2")
    model = whole["model"]
    model["merges"] = model["merges"][:merges]
    first = {text: number for text, number in model["vocab"].items() if number < 256 + merges}
    model["vocab"] = {**first, "<|endoftext|>": len(first)}
    for token in whole["added_tokens"]:
        token["id"] = len(first)
    return whole


def native(text: str, **settings: Any) -> Any:
    """The native tokenizer of a tokenizer.json's text."""
    given = _C.JsonTokenizerSettings()
    for name, value in settings.items():
        setattr(given, name, value)
    return _C.parse_json_tokenizer(text, "tokenizer.json", given)


@functools.cache
def tokenizer_pair(name: str) -> tuple[Any, Any]:
    """(ours, `tokenizers`) of one recorded file; both only read from."""
    import tokenizers

    return native(json_text(name)), tokenizers.Tokenizer.from_str(json_text(name))


def write_directory(folder: Path, text: str, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(text, "utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABC",
    "0123456789",
    "    \t\n\r\u00a0\u3000\u2028\x0b",
    "'!?.,-_<>|\"()$",
    "'s 't 're 'VE 'Ll 'D \u017f",
    "\u00e9\u00fc\u00df\u0131\u0130\u01c5",
    "\u0301\u0327\u0345\u0334\u0300",
    "\u4e2d\u6587\u3042\u30ab\u1100\u1161\u11a8\uac00",
    "\U0001f600\u200d\ufe0f\U0001f468",
    "\u0661\u00b2\u2167\u0e51",
)


def mixed_text(random_: random.Random) -> str:
    """Runs from several alphabets, now and then any code point."""
    parts = []
    for _ in range(random_.randint(0, 12)):
        if random_.random() < 0.1:
            parts.append(chr(random_.choice(CODE_POINTS)))
            continue
        alphabet = random_.choice(ALPHABETS)
        parts.append("".join(random_.choices(alphabet, k=int(random_.expovariate(0.3)) + 1)))
    return "".join(parts)


def compare(name: str, texts: list[str]) -> None:
    """Asserts equal ids, with and without the processor's special instructions."""
    ours, theirs = tokenizer_pair(name)
    portable = native_portable(name)
    expected = [e.ids for e in theirs.encode_batch_fast(texts, add_special_tokens=False)]
    data = [text.encode() for text in texts]
    assert ours.encode_batch(data) == expected
    assert portable.encode_batch(data) == expected


@functools.cache
def native_portable(name: str) -> Any:
    tokenizer = native(json_text(name))
    tokenizer.use_portable_code()
    return tokenizer
