"""Added tokens, prefix spaces and post-processors, side by side with `tokenizers`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from byte_level_files import content, native
from fastsft import _C

PROBES = (
    "",
    " ",
    "a <x> b",
    "<x>",
    "  <x>  <xy>b<x",
    "a<x>b <x>, <x>_ \u00e9<x> <x>\u0301 (<x>)",
    "\u3000<x>\u00a0c \x1f<x>\x1f",
    "ne\u0301e n\u00e9e",
    "<|endoftext|> hi<|endoftext|>\n<x> <x>\n\n",
    "<x><x><xy><xy> <x",
)


def added(token_id: int, text: str, **flags: bool) -> dict[str, Any]:
    token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": text, **token, **flags}


TOKENS = {
    "plain": [added(50257, "<x>"), added(50258, "<xy>")],
    "special": [added(50257, "<x>", special=True), added(50258, "<xy>")],
    "strips": [added(50257, "<x>", lstrip=True, rstrip=True), added(50258, "<xy>", lstrip=True)],
    "strips_right": [added(50257, "<x>", rstrip=True), added(50258, "<xy>")],
    "single_word": [added(50257, "<x>", single_word=True), added(87, "x", single_word=True)],
    "normalized": [added(50257, "<x>", normalized=True), added(50258, "e\u0301e", normalized=True)],
    "of_the_vocabulary": [added(31373, "hello"), added(50257, "n\u00e9e", normalized=True)],
}


@pytest.mark.covering
@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("name", TOKENS)
def test_added_tokens(name: str, normalizer: Any, prefix: bool) -> None:
    text = content("gpt2")
    text["added_tokens"] += TOKENS[name]
    text["normalizer"] = normalizer
    text["pre_tokenizer"]["add_prefix_space"] = prefix
    ours, theirs = native(json.dumps(text)), tokenizers.Tokenizer.from_str(json.dumps(text))
    for plain in (False, True):
        theirs.encode_special_tokens = plain
        for probe in PROBES:
            ids, offsets = ours.encode_with_offsets(probe.encode(), plain)
            assert ids == theirs.encode(probe, add_special_tokens=False).ids, (probe, plain)
            assert b"".join(probe.encode()[a:b] for a, b in offsets) == probe.encode()
            for skip in (False, True):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_named_ids_and_bos_of_the_template() -> None:
    ours = native(json.dumps(content("cl100k")))
    assert (ours.adds_bos, ours.adds_eos, ours.named.bos, ours.named.eos) == (True, False, 100256, -1)
    named = native(
        json.dumps(content("gpt2")),
        eos="<|endoftext|>",
        added=[_C.GivenToken(_C.AddedToken(-1, "[PAD]"))],
        pad="[PAD]",
    )
    assert (named.named.eos, named.named.pad, named.vocab_size) == (50256, 50257, 50258)
    assert named.encode(b"a[PAD]") == [64, 50257]
    with pytest.raises(ValueError, match=r"special token \"<s>\" is not in the vocabulary"):
        native(json.dumps(content("gpt2")), bos="<s>")
