"""Tokenizer objects that are called, or were changed by a script: FastChat's labels, or refused by name."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import fastchat.train.train as original
import pytest
import torch
import transformers
from tokenizers.normalizers import Lowercase, Sequence
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

import fastsft.train as ours
from fastsft import _C
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import called_tokenizer, find_native_tokenizer
from golden_text import GOLDEN, MODES, hf_tokenizer, human_gpt

WIDTH = 96
SOURCES = [
    human_gpt("Where is the lake?", "Behind the hill, near the old mill."),
    human_gpt("Name three trees.", "Oak, elm and beech. " * 12, "More?", "No."),
]
Change = Callable[[Any, pytest.MonkeyPatch], None]


def backwards(function: Any) -> Any:
    """The pieces of a text in the other order."""

    @functools.wraps(function)
    def changed(*args: Any, **options: Any) -> Any:
        return function(*args, **options)[::-1]

    return changed


def other_vowels(call: Any, *, alone: bool = True) -> Any:
    """A __call__ that changes the text; alone: also where it is not in a list."""

    def changed(self: Any, text: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(text, list):
            text = [each.replace("e", "o") for each in text]
        elif alone:
            text = text.replace("e", "o")
        return call(self, text, *args, **options)

    return changed


class Backwards(transformers.LlamaTokenizer):
    """Of a script."""

    def _tokenize(self, text: str, **options: Any) -> Any:
        return super()._tokenize(text, **options)[::-1]


def of_another_class(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer.__class__ = Backwards


def method_of_the_object(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer._tokenize = types.MethodType(backwards(type(tokenizer)._tokenize), tokenizer)


def partial_on_the_object(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer._tokenize = functools.partial(backwards(type(tokenizer)._tokenize), tokenizer)


def method_of_the_class(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(tokenizer), "_tokenize", backwards(type(tokenizer)._tokenize))


def call_of_the_base(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreTrainedTokenizerBase, "__call__", other_vowels(PreTrainedTokenizerBase.__call__))


def call_of_the_class(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    call = other_vowels(PreTrainedTokenizerBase.__call__)
    patch.setattr(type(tokenizer), "__call__", call, raising=False)


def property_of_the_class(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(tokenizer), "bos_token_id", property(lambda _: 7), raising=False)


def pieces_of_a_script(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    encode = tokenizer.sp_model.encode
    tokenizer.sp_model.encode = lambda text, **options: encode(text.replace("e", "o"), **options)


def pieces_of_the_class(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    kind = type(tokenizer.sp_model)
    encode = kind.encode
    patch.setattr(
        kind, "encode", lambda self, text, **options: encode(self, text.replace("e", "o"), **options)
    )


def cuts_of_a_script(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    kind = type(tokenizer.tokens_trie)
    split = kind.split
    patch.setattr(kind, "split", lambda self, text: split(self, text.replace("e", "o")))


def without_bos(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer.add_bos_token = False


def another_bos(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer.add_special_tokens({"bos_token": "</s>"})


def another_token(tokenizer: Any, _: pytest.MonkeyPatch) -> None:
    tokenizer.add_tokens(["hill"])


CHANGES = [
    of_another_class, method_of_the_object, partial_on_the_object, method_of_the_class, call_of_the_base,
    call_of_the_class, property_of_the_class, without_bos, another_bos, another_token, pieces_of_a_script,
    pieces_of_the_class, cuts_of_a_script,
]  # fmt: skip
SETTINGS = (without_bos, another_bos, another_token)


def same(found: Any, expected: Any) -> bool:
    return all(torch.equal(found[name], expected[name]) for name in ("input_ids", "labels"))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_before_labelling(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = hf_tokenizer(MODES[0], WIDTH)
    untouched = original.preprocess(SOURCES, tokenizer)
    change(tokenizer, monkeypatch)
    expected = original.preprocess(SOURCES, tokenizer)
    assert not same(untouched, expected)
    assert (find_native_tokenizer(tokenizer) is None) is (change not in SETTINGS)
    assert same(ours.preprocess(SOURCES, tokenizer), expected)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_after_labelling(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = hf_tokenizer(MODES[0], WIDTH)
    dataset = ours.LazySupervisedDataset([{"conversations": each} for each in SOURCES], tokenizer)
    before = dataset.untouched_rows()
    assert dataset.untouched_rows(label=False) is before
    change(tokenizer, monkeypatch)
    assert dataset.untouched_rows(label=False) is None
    expected, rows = original.preprocess(SOURCES, tokenizer), dataset.untouched_rows()
    for row in range(len(SOURCES)):
        ids = torch.from_numpy(rows.ids(row).astype("int64"))
        assert torch.equal(ids, expected["input_ids"][row][: len(ids)])
        assert torch.equal(dataset[row]["labels"], expected["labels"][row])


def test_a_batch_that_is_another_than_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    call = other_vowels(PreTrainedTokenizerBase.__call__, alone=False)
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", call)
    with pytest.raises(ValueError, match=r"PreTrainedTokenizerBase\.__call__ is .*set fastsft\.train\.prep"):
        ours.preprocess(SOURCES, hf_tokenizer(MODES[0], WIDTH))


def test_a_fast_tokenizer() -> None:
    """Its parts, and a class of a script around it."""
    folder = GOLDEN / "tokenizers" / MODES[0]
    tokenizer = transformers.LlamaTokenizerFast.from_pretrained(folder)
    first = find_native_tokenizer(tokenizer)
    assert first is not None and find_native_tokenizer(tokenizer) is first
    tokenizer("padded and cut", padding="max_length", max_length=8, truncation=True)
    assert find_native_tokenizer(tokenizer) is first
    backend = tokenizer.backend_tokenizer
    backend.normalizer = Sequence([Lowercase(), *([backend.normalizer] if backend.normalizer else [])])
    second = find_native_tokenizer(tokenizer)
    assert second is not first
    if second is not None:
        assert second.encode(b"The Lake") == tokenizer("The Lake", add_special_tokens=False).input_ids
    tokenizer.__class__ = type("Mine", (transformers.LlamaTokenizerFast,), {"_batch_encode_plus": None})
    assert find_native_tokenizer(tokenizer) is None


def test_what_changes_nothing_stays_native(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = hf_tokenizer(MODES[0], WIDTH)
    monkeypatch.setattr(transformers.LlamaTokenizer, "count_of_a_script", lambda self: 1, raising=False)
    tokenizer.encode = tokenizer.encode
    assert find_native_tokenizer(tokenizer) is not None


def test_our_own_tokenizer() -> None:
    tokenizer: Any = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0])
    assert find_native_tokenizer(tokenizer) is tokenizer.native
    tokenizer.add_bos_token = False
    with pytest.raises(ValueError, match=r"add_bos_token was set to False.*in tokenizer_config\.json"):
        find_native_tokenizer(tokenizer)
    tokenizer.add_bos_token = True
    tokenizer.encode = lambda text: [1]
    with pytest.raises(ValueError, match=r"object's encode is .*give a tokenizer of transformers"):
        find_native_tokenizer(tokenizer)


def test_encode_and_decode_name_what_they_take() -> None:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0])
    with pytest.raises(TypeError, match="encode: expected a text, got 5; encode_batch takes a list"):
        tokenizer.encode(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decode: expected ids of tokens, got the text 'hello'"):
        tokenizer.decode("hello")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode_batch: expected a list of texts, got the text 'hello'"):
        tokenizer.encode_batch("hello")
    with pytest.raises(ValueError, match="got a file; name its directory"):
        Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0] / "tokenizer.model")


class NotCalled:
    bos_token_id, eos_token_id, pad_token_id, model_max_length, legacy = 1, 2, 0, 8, True


def test_an_object_that_cannot_be_called_is_named() -> None:
    with pytest.raises(TypeError, match="expected a tokenizer of fastsft or transformers, got NotCalled"):
        called_tokenizer(NotCalled())


def test_texts_stay_while_the_tokenizer_is_called() -> None:
    """Whatever becomes of the list in between: its texts are read until the end."""
    texts = [str(number) * 300_000 for number in range(1, 9)]
    seen, others = [], []

    def encode(text: str) -> list[int]:
        seen.append((len(text), set(text)))
        if text:  # not the question what an empty text gives
            texts.clear()
        others.extend("z" * 300_000 for _ in range(10))
        return [len(seen)]

    ids, _ = _C.PythonTokenizer(encode, lambda: False, _C.NamedIds()).encode_flat(texts)
    assert seen[-8:] == [(300_000, {str(number)}) for number in range(1, 9)] and len(ids) == 8
