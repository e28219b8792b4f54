"""Damaged and hostile tokenizer.json files: refused by name, in time near their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from byte_level_files import native
from fastsft import _C

FUZZ = Path(__file__).parents[1] / "fuzz"


def file(**changes: Any) -> str:
    """The small GPT-2 of the fuzz corpus, changed."""
    content = json.loads((FUZZ / "corpus" / "tokenizer_json" / "gpt2.json").read_text("utf-8"))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            content[section][name] = value
        else:
            content[section] = value
    return json.dumps(content)


def vocabulary(**more: Any) -> dict[str, Any]:
    return {**json.loads(file())["model"]["vocab"], **more}


def token(**changes: Any) -> dict[str, Any]:
    return {"id": 260, "content": "<x>", "special": True, **changes}


CASES: dict[str, tuple[str, str]] = {
    "not_json": ("{", "not JSON at byte"),
    "nul": ('{"a":"\0"}', "NUL byte at 6"),
    "no_object": ("[]", "expected an object, got array"),
    "no_model": ("{}", 'expected an object "model"'),
    "no_vocabulary": ('{"model":{"type":"BPE"}}', "expected the vocabulary"),
    "vocabulary_is_a_number": (file(model__vocab=5), "expected the vocabulary"),
    "deep": ("[" * 100_000, "nested deeper than 64"),
    "deep_in_a_section": (file(decoder=json.loads("[" * 70 + "]" * 70)), "nested deeper than 64"),
    "id_beyond_the_vocabulary": (
        file(model__vocab=vocabulary(zz=10**6)),
        "id 1000000 is not below the number",
    ),
    "id_negative": (file(model__vocab=vocabulary(zz=-1)), "has the id -1, which is not possible"),
    "id_of_64_bits": (file(model__vocab=vocabulary(zz=2**64 - 1)), "which is not possible"),
    "id_with_a_fraction": (file(model__vocab=vocabulary(zz=0.5)), "a number with a fraction"),
    "id_twice": (file(model__vocab=vocabulary(zz=7)), "two pieces have the id 7"),
    "piece_twice": ('{"model":{"vocab":{"a":0,"a":1}}}', "the piece of id 1 is a duplicate"),
    "model_twice": ('{"model":{"vocab":{}},"model":{"vocab":{}}}', 'duplicate key "model"'),
    "vocabulary_twice": ('{"model":{"vocab":{},"vocab":{}}}', 'duplicate key "vocab"'),
    "piece_nested": ('{"model":{"vocab":{"a":{"b":1}}}}', "got an object"),
    "score_not_finite": ('{"model":{"vocab":[["a",1e999]]}}', "number overflow"),
    "merge_of_a_missing_piece": (file(model__merges=["h e", "q zz"]), "the right part of merge 1 is not in"),
    "merge_without_result": (file(model__merges=["q q"]), "the result of merge 0 is not in the vocabulary"),
    "merge_of_three": (file(model__merges=[["h", "e", "l"]]), "got a list of another length"),
    "merge_without_space": (file(model__merges=["he"]), "without exactly one space"),
    "merge_a_number": (file(model__merges=[1]), "merge 0 as"),
    "added_twice": (file(added_tokens=[token(), token(id=261)]), "duplicate token 261"),
    "added_empty": (file(added_tokens=[token(content="")]), "a text that is not empty"),
    "added_beyond": (file(added_tokens=[token(id=99999)]), "id 99999 is not below the number of tokens"),
    "added_flag": (file(added_tokens=[token(lstrip="yes")]), 'true or false for "lstrip", got string'),
    "lone_surrogate": ('{"model":{"vocab":{"\\ud800":0}}}', "not JSON at byte"),
    "long_piece": (file(model__vocab=vocabulary(**{"z" * 70_000: 260})), "has 70000 bytes, at most 65536"),
    "many_keys": (file(decoder={str(i): 0 for i in range(5000)}), "more than 4096 keys"),
    "template_without_ids": (
        file(post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}),
        "post_processor: a part is missing",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str) -> None:
    text, message = CASES[name]
    with pytest.raises(ValueError, match=r"tokenizer\.json") as error:
        native(text)
    assert message in str(error.value)
    assert not isinstance(error.value, _C.UnsupportedTokenizerError)


def test_a_vocabulary_of_more_than_four_million_pieces_is_refused() -> None:
    pieces = ",".join(f'"{i:x}":{i}' for i in range((1 << 22) + 1))
    with pytest.raises(ValueError, match=r"tokenizer\.json.* more than 4194304 pieces") as error:
        native('{"model":{"vocab":{' + pieces + "}}}")
    assert not isinstance(error.value, _C.UnsupportedTokenizerError)


NOT_NATIVE: dict[str, tuple[str, str]] = {
    "dropout": (file(model__dropout=0.1), "a BPE model with dropout"),
    "unigram": (file(model__type="Unigram"), 'the model "Unigram"'),
    "new_setting": (file(model__surprise=1), 'the model\'s setting "surprise"'),
    "normalizer": (file(normalizer={"type": "NFKC"}), 'the normalizer "NFKC"'),
    "no_pre_tokenizer": (file(pre_tokenizer=None), 'the pre-tokenizer "none"'),
    "decoder": (file(decoder=None), 'the decoder "none"'),
    "byte_missing": (file(model__vocab={"a": 0}, model__merges=[], added_tokens=[]), "without the byte 0"),
    "other_ids": (file(added_tokens=[token(id=3)]), "with the id 3 that gets 260"),
    "bert": (file(post_processor={"type": "BertProcessing"}), 'the post-processor "BertProcessing"'),
    "long_token": (file(added_tokens=[token(content="x" * 600)]), "an added token of 600 bytes"),
}


@pytest.mark.parametrize("name", NOT_NATIVE)
def test_left_to_the_library(name: str) -> None:
    text, message = NOT_NATIVE[name]
    with pytest.raises(_C.UnsupportedTokenizerError) as error:
        native(text)
    assert message in str(error.value)


@pytest.mark.parametrize("path", sorted(FUZZ.glob("*/tokenizer_json/*")), ids=lambda path: path.name)
def test_files_of_the_fuzzer_end(path: Path) -> None:
    try:
        tokenizer = _C.read_json_tokenizer(str(path), _C.JsonTokenizerSettings())
    except ValueError:
        return
    ids = tokenizer.encode("hello <|x|> 'll\n  e\u0301".encode())
    assert ids and all(0 <= i < tokenizer.vocab_size for i in ids)
