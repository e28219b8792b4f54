"""tokenizer.json files that write U+2581 for a space, run natively: the ids of `tokenizers`.

llama2_fast.json.gz is what transformers' LlamaTokenizerFast makes of the Llama-2 tokenizer.model. The other
forms differ from it in how spaces are treated, as Llama's and Mistral's converters of several years write it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tokenizers

from fastsft import _C
from golden_text import CONVERSATIONS, GOLDEN, read_texts
from mixed_texts import code_points, in_parts, random_texts

ORIGINAL = gzip.decompress((GOLDEN / "tokenizers" / "llama2_fast.json.gz").read_bytes())
MARK = "▁"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}


def metaspace(scheme: str, split: bool) -> Callable[[Any], None]:
    def edit(file: Any) -> None:
        section = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}
        file.update(normalizer=None, pre_tokenizer=section)

    return edit


def no_prefix(file: Any) -> None:
    file["normalizer"] = REPLACE
    del file["decoder"]["decoders"][3]


def added_tokens(file: Any) -> None:
    for number, (text, flags) in enumerate(
        (("<x>", {}), ("<xy>", {"special": False}), ("[L]", {"lstrip": True}), ("[R]", {"rstrip": True}))
    ):
        token = dict(file["added_tokens"][0], id=32000 + number, content=text)
        file["added_tokens"].append({**token, **flags})


def normalized_tokens(file: Any) -> None:
    metaspace("first", False)(file)
    added_tokens(file)
    file["added_tokens"][-3]["normalized"] = True


def without_bytes(file: Any) -> None:
    file["model"]["byte_fallback"] = False


def without_fusing(file: Any) -> None:
    file["model"].update(byte_fallback=False, fuse_unk=False)


def joined_words(file: Any) -> None:
    file["model"]["merges"].insert(5, ["e", f"{MARK}t"])
    file["model"]["vocab"][f"e{MARK}t"] = 32000


def later_merges(file: Any) -> None:
    """Another order of merges, and one that comes twice: scores could not say that."""
    merges = file["model"]["merges"]
    file["model"]["merges"] = [*merges[300:2000], *merges[:300], *merges[2000:], merges[1]]


VARIANTS: dict[str, Callable[[Any], None]] = {
    "llama_legacy": lambda file: None,
    "llama": metaspace("first", False),
    "always": metaspace("always", False),
    "never": metaspace("never", False),
    "every_space_always": metaspace("always", True),
    "every_space_first": metaspace("first", True),
    "no_prefix": no_prefix,
    "added_tokens": added_tokens,
    "normalized_tokens": normalized_tokens,
    "without_bytes": without_bytes,
    "without_fusing": without_fusing,
    "joined_words": joined_words,
    "later_merges": later_merges,
}
PROBES = (
    "",
    " ",
    "a <x> b",
    "<s>Hi</s> there </s>\n",
    "  <xyz>  [L]  [R]  b<x",
    "<s> <s>x",
    "▁a ▁ b▁",
    "e t e  t",
    "[R] [L]\u3000[L]",
)


def write(name: str) -> str:
    file = json.loads(ORIGINAL)
    VARIANTS[name](file)
    return json.dumps(file)


class Pair:
    def __init__(self, name: str) -> None:
        text = write(name)
        self.ours = _C.parse_json_tokenizer(text, "tokenizer.json", _C.JsonTokenizerSettings())
        self.theirs = tokenizers.Tokenizer.from_str(text)

    def check(self, texts: Iterable[str], plain: bool = False) -> None:
        self.theirs.encode_special_tokens = plain
        for part in in_parts(iter(texts)):
            expected = self.theirs.encode_batch_fast(part, add_special_tokens=False)
            found = self.ours.encode_batch([text.encode() for text in part], plain)
            wrong = [text for text, a, b in zip(part, expected, found, strict=True) if a.ids != b]
            assert not wrong, (len(wrong), wrong[:3])


@pytest.mark.parametrize("name", VARIANTS)
def test_ids(name: str) -> None:
    pair = Pair(name)
    pair.check([*PROBES, *read_texts("tokenizer_edge_texts")])
    pair.check(PROBES, plain=True)
    pair.check(random_texts(1_500, seed=8))


@pytest.mark.covering
@pytest.mark.parametrize("name", ["llama_legacy", "llama"])
@pytest.mark.parametrize("source", [*CONVERSATIONS, "wiki_demo"])
def test_ids_of_real_texts(name: str, source: str) -> None:
    Pair(name).check(read_texts(source)[::4])


@pytest.mark.parametrize("name", ["llama_legacy", "every_space_always"])
def test_sampled_code_points(name: str) -> None:
    Pair(name).check(code_points(301))


@pytest.mark.chaos
@pytest.mark.parametrize("name", VARIANTS)
def test_all_code_points(name: str) -> None:
    Pair(name).check(code_points(1))


@pytest.mark.chaos
@pytest.mark.parametrize("name", VARIANTS)
def test_a_million_random_texts(name: str) -> None:
    Pair(name).check(random_texts(1_000_000, seed=9))


@pytest.mark.variants("llama_legacy", "later_merges", "normalized_tokens", "[never]")
@pytest.mark.parametrize("name", VARIANTS)
def test_decode_and_ranges(name: str) -> None:
    pair = Pair(name)
    for text in [*PROBES, *read_texts("tokenizer_edge_texts"), *random_texts(200, seed=10)]:
        ids, ranges = pair.ours.encode_with_offsets(text.encode())
        data = text.encode()
        assert b"".join(data[begin:end] for begin, end in ranges) == data
        for skip in (False, True):
            for some in (ids, ids[1:], [1, *ids, 2]):
                assert pair.ours.decode(some, skip) == pair.theirs.decode(some, skip_special_tokens=skip)


def test_several_threads_at_once() -> None:
    pair, texts = Pair("llama"), [text.encode() for text in random_texts(500, seed=11)]
    expected = [pair.ours.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(lambda: [pair.ours.encode(text) for text in texts]) for _ in range(4)]
    assert all(run.result() == expected for run in runs)


def test_named_tokens() -> None:
    ours = Pair("llama").ours
    assert (ours.named.bos, ours.vocab_size, ours.token_text(1)) == (1, 32000, "<s>")


def edited(**model: Any) -> Callable[[Any], None]:
    return lambda file: file["model"].update(model)


def with_section(name: str, section: Any) -> Callable[[Any], None]:
    return lambda file: file.update({name: section})


def other_marks(file: Any) -> None:
    metaspace("first", False)(file)
    file["pre_tokenizer"]["replacement"] = "_"
    file["normalizer"] = REPLACE


def partial_bytes(file: Any) -> None:
    del file["model"]["vocab"]["<0x07>"]
    file["model"]["vocab"]["qqqqqqq"] = 10


def byte_merge(file: Any) -> None:
    file["model"]["merges"].append(["<0x41>", "b"])
    file["model"]["vocab"]["<0x41>b"] = 32000


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (edited(dropout=0.1), "dropout"),
        (edited(ignore_merges=True), "ignore_merges"),
        (edited(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (edited(unk_token=None, byte_fallback=False), "without unk_token"),
        (partial_bytes, "not all bytes"),
        (byte_merge, "merge of a byte"),
        (other_marks, "pre-tokenizer"),
        (with_section("pre_tokenizer", {"type": "Whitespace"}), "Whitespace"),
        (with_section("normalizer", {"type": "Prepend", "prepend": MARK}), "Prepend"),
        (with_section("decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}), "WordPiece"),
        (with_section("decoder", None), "none"),
        (lambda file: (added_tokens(file), file["added_tokens"][-1].update(normalized=True)), "among"),
    ],
)
def test_what_is_left_to_the_library(edit: Callable[[Any], None], reason: str) -> None:
    file = json.loads(ORIGINAL)
    edit(file)
    with pytest.raises(_C.UnsupportedTokenizerError, match=reason):
        _C.parse_json_tokenizer(json.dumps(file), "tokenizer.json", _C.JsonTokenizerSettings())
