"""Settings and parts of tokenizer objects that a script sets: labels are FastChat's with the same object."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastchat.train.train as original
import pytest
import torch
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import models, pre_tokenizers

import fastsft.train as ours
from byte_level_files import json_text, write_directory
from fastsft.tokenizer import state as model_digest
from fastsft.tokenizer.state import tokenizer_state
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import MODES, hf_tokenizer, human_gpt

WIDTH = 96
END = "<|endoftext|>"
SOURCES = [
    human_gpt("Where is the Lake?", "Behind the Hill, near the old mill."),
    human_gpt("Name three trees, hello.", "Oak, elm and beech, hello hello. " * 12, "More?", "No."),
]
RECORDS = [{"conversations": each} for each in SOURCES]
Change = Callable[[Any], None]
_OPTIONS = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
    "ignore_merges",
)  # fmt: skip


def lower_case(tokenizer: Any) -> None:
    tokenizer.do_lower_case = True


def id_of_a_piece(tokenizer: Any) -> None:
    tokenizer._added_tokens_encoder.update(dict.fromkeys(("▁near", "Ġnear", "ear"), 7))


def cut_at_a_word(tokenizer: Any) -> None:
    tokenizer.tokens_trie.add("ello")


def cut_at_no_word(tokenizer: Any) -> None:
    tokenizer.tokens_trie.data = {}


def reverse(tokenizer: Any) -> None:
    tokenizer.sp_model._reverse = True


def bos_of_the_pieces(tokenizer: Any) -> None:
    tokenizer.sp_model._add_bos = True


def eos_of_the_pieces(tokenizer: Any) -> None:
    tokenizer.sp_model._add_eos = True


def fewer_merges(tokenizer: Any) -> None:
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    merges = [tuple(each.split(" ")) if isinstance(each, str) else tuple(each) for each in model["merges"]]
    same = {name: model[name] for name in _OPTIONS if name in model}
    tokenizer.backend_tokenizer.model = models.BPE(vocab=model["vocab"], merges=merges[:300], **same)


def pieces_loaded_again(tokenizer: Any) -> None:
    """In the same object, as by LoadFromSerializedProto; long pieces are not used."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(tokenizer.sp_model.serialized_model_proto())
    for piece in proto.pieces:
        if piece.type == piece.NORMAL and len(piece.piece) > 3:
            piece.type = piece.UNUSED
    tokenizer.sp_model.LoadFromSerializedProto(proto.SerializeToString())


def fewer_ranks(tokenizer: Any) -> None:
    tokenizer.bpe_ranks = dict(list(tokenizer.bpe_ranks.items())[:300])
    tokenizer.cache = {}


class Halves:
    """A pre-tokenizer of a script, as one for Chinese words is written."""

    def pre_tokenize(self, text: Any) -> None:
        text.split(lambda _, part: [part[: len(str(part)) // 2], part[len(str(part)) // 2 :]])


def parts_of_a_script(tokenizer: Any) -> None:
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own = pre_tokenizers.PreTokenizer.custom(Halves())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([own, last])


def unknown_token_without_an_id(tokenizer: Any) -> None:
    tokenizer.unk_token = "<unk>"


def llama(_: Path) -> Any:
    return hf_tokenizer(MODES[0], WIDTH)


def qwen(folder: Path, fast: bool = True) -> Any:
    text = json_text("qwen2")
    write_directory(folder, text, {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None})
    model = json.loads(text)["model"]
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", "utf-8")
    kind = transformers.Qwen2TokenizerFast if fast else transformers.Qwen2Tokenizer
    tokenizer = kind.from_pretrained(folder, model_max_length=WIDTH, padding_side="right", pad_token=END)
    tokenizer.legacy = True  # FastChat asks for it
    return tokenizer


def slow_qwen(folder: Path) -> Any:
    return qwen(folder, fast=False)


OF_LLAMA = (
    lower_case, id_of_a_piece, cut_at_a_word, cut_at_no_word, reverse, bos_of_the_pieces,
    eos_of_the_pieces, pieces_loaded_again,
)  # fmt: skip
CASES = [
    *((llama, change) for change in OF_LLAMA),
    (qwen, fewer_merges), (qwen, parts_of_a_script),
    (slow_qwen, lower_case), (slow_qwen, id_of_a_piece), (slow_qwen, cut_at_a_word),
    (slow_qwen, fewer_ranks),
]  # fmt: skip


def same(found: Any, expected: Any) -> bool:
    return all(torch.equal(found[name], expected[name]) for name in ("input_ids", "labels", "attention_mask"))


def names(case: Any) -> str:
    return str(case.__name__)


@pytest.mark.variants("qwen-fewer_merges", "llama-pieces", "llama-reverse")
@pytest.mark.parametrize(("make", "change"), CASES, ids=names)
def test_before_labelling(make: Any, change: Change, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    untouched = original.preprocess(SOURCES, tokenizer)
    assert same(ours.preprocess(SOURCES, tokenizer), untouched)
    change(tokenizer)
    expected = original.preprocess(SOURCES, tokenizer)
    assert not same(untouched, expected)
    assert same(ours.preprocess(SOURCES, tokenizer), expected)
    for number, source in enumerate(SOURCES):  # one at a time, as a lazy data set does
        alone = ours.preprocess([source], tokenizer)
        assert torch.equal(alone["input_ids"][0], expected["input_ids"][number])


@pytest.mark.variants(
    "qwen-parts", "slow_qwen-lower_case", "slow_qwen-id_of", "llama-pieces", "llama-cut_at_a_word"
)
@pytest.mark.parametrize(("make", "change"), CASES, ids=names)
def test_after_labelling(make: Any, change: Change, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    dataset = ours.LazySupervisedDataset(RECORDS, tokenizer)
    before = dataset.untouched_rows()
    assert dataset.untouched_rows(label=False) is before and dataset.still_has([0, 1])
    change(tokenizer)
    assert dataset.untouched_rows(label=False) is None and not dataset.still_has([0, 1])
    expected, rows = original.preprocess(SOURCES, tokenizer), dataset.untouched_rows()
    assert (rows is None) is (change is parts_of_a_script)
    for row in range(len(SOURCES)):
        assert torch.equal(dataset[row]["input_ids"], expected["input_ids"][row])
        assert torch.equal(dataset[row]["labels"], expected["labels"][row])
        if rows is not None:
            ids = torch.from_numpy(rows.ids(row).astype("int64"))
            assert torch.equal(ids, expected["input_ids"][row][: len(ids)])


@pytest.mark.variants("qwen-parts", "llama-lower", "llama-eos")
@pytest.mark.parametrize(("make", "change"), CASES, ids=names)
def test_in_the_middle_of_an_epoch(make: Any, change: Change, tmp_path: Path) -> None:
    """The rows to be read next are asked for, and nothing else looks."""
    tokenizer = make(tmp_path)
    dataset = ours.LazySupervisedDataset(RECORDS, tokenizer)
    assert dataset.untouched_rows() is not None and dataset.still_has([0])
    change(tokenizer)
    assert not dataset.still_has([1])


def test_a_model_that_cuts_the_probe_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is looked at where rows are planned, whatever the ids of one text say."""
    tokenizer = qwen(tmp_path)
    monkeypatch.setattr(model_digest, "_PROBE", "")
    dataset = ours.LazySupervisedDataset(RECORDS, tokenizer)
    assert dataset.untouched_rows() is not None
    fewer_merges(tokenizer)
    assert dataset.untouched_rows(label=False) is None
    expected = original.preprocess(SOURCES, tokenizer)
    for row in range(len(SOURCES)):
        assert torch.equal(dataset[row]["input_ids"], expected["input_ids"][row])


def test_a_part_of_a_script_is_never_taken_as_known(tmp_path: Path) -> None:
    """Nothing tells whether it has changed: items are read, as FastChat reads them."""
    tokenizer = qwen(tmp_path)
    parts_of_a_script(tokenizer)
    dataset = ours.LazySupervisedDataset(RECORDS, tokenizer)
    assert dataset.untouched_rows() is None and not dataset.still_has([0])
    expected = original.LazySupervisedDataset(RECORDS, tokenizer)
    assert all(torch.equal(dataset[row]["labels"], expected[row]["labels"]) for row in range(len(RECORDS)))


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_an_unknown_token_without_an_id(kind: str, tmp_path: Path) -> None:
    tokenizer = qwen(tmp_path) if kind == "qwen" else fast_llama(tmp_path)
    unknown_token_without_an_id(tokenizer)
    with pytest.raises(RecursionError):
        _ = tokenizer.unk_token_id
    expected = original.preprocess(SOURCES, tokenizer)
    assert same(ours.preprocess(SOURCES, tokenizer), expected)
    dataset = ours.LazySupervisedDataset(RECORDS, tokenizer)
    assert dataset.untouched_rows() is not None and dataset.still_has([0, 1])


def fast_llama(folder: Path) -> Any:
    """With the vocabulary of a byte-level tokenizer, in which "<unk>" is no token."""
    write_directory(folder, json_text("gpt2"), {"tokenizer_class": "PreTrainedTokenizerFast"})
    read = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return transformers.LlamaTokenizerFast(
        tokenizer_object=read.backend_tokenizer, unk_token=END, bos_token=END, eos_token=END, pad_token=END,
        model_max_length=WIDTH, padding_side="right", add_bos_token=False,
    )  # fmt: skip


@pytest.mark.parametrize("make", [llama, qwen, slow_qwen], ids=names)
def test_using_a_tokenizer_changes_nothing(make: Any, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    native, state = find_native_tokenizer(tokenizer), tokenizer_state(tokenizer)
    tokenizer.decode(tokenizer("Padded and cut, hello", padding="max_length", truncation=True).input_ids)
    tokenizer.apply_chat_template([{"role": "user", "content": "x"}], chat_template="{{ 1 }}")
    assert find_native_tokenizer(tokenizer) is native and tokenizer_state(tokenizer) == state


class WithoutCopies:
    """A backend of which nobody may ask what copies its vocabulary."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        assert name not in ("get_vocab", "to_str", "__getstate__"), name
        return getattr(self._backend, name)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        assert not with_added_tokens
        return int(self._backend.get_vocab_size(with_added_tokens=False))


def test_a_state_does_not_copy_the_vocabulary(tmp_path: Path) -> None:
    """It is asked for at every step and item."""
    backend = WithoutCopies(qwen(tmp_path).backend_tokenizer)
    owner = types.SimpleNamespace(backend_tokenizer=backend)
    assert tokenizer_state(owner) == tokenizer_state(owner)
