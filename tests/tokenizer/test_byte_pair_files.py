"""Tokenizers of OPT, GPT-2 and Qwen 2 of vocab.json and merges.txt alone, and the labels of a run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.mask_policy import resolve_policy
from fastsft.tokenizer import Tokenizer
from fastsft.train import train
from generic_engines import library_model
from golden_text import GOLDEN

ENDS = {"opt": "</s>", "gpt2": "<|endoftext|>"}
TEXTS = ["a  b\n\nc</s>d </s> e", "é你😀 x", "<|endoftext|>hi <|endoftext|> ", "", "   ", "don't 12345 !!",
         "<pad>x<pad> y<s>", "A chat. USER: x ASSISTANT: y</s>USER: "]  # fmt: skip
TURNS = [{"from": "human", "value": "Who are you?"}, {"from": "gpt", "value": "I am Vicuna."}]
SIZES: dict[str, dict[str, Any]] = {
    "opt": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
            "word_embed_proj_dim": 32, "max_position_embeddings": 256, "pad_token_id": 1,
            "bos_token_id": 2, "eos_token_id": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
}  # fmt: skip


@pytest.fixture(params=ENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def slow_of_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, use_fast=False, model_max_length=64)


def test_ids_are_those_of_the_slow_tokenizer(kind: str, tmp_path: Path) -> None:
    """FastChat loads that one; OPT's has a BOS in front."""
    ours = Tokenizer.from_pretrained(write_byte_pairs(tmp_path, kind))
    theirs = slow_of_transformers(tmp_path)
    assert [ours.encode(text, True) for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_fastchat_itself_learns_nothing(kind: str, tmp_path: Path) -> None:
    """One round is masked as a mismatch, several rounds ask for an attribute that the class does not have."""
    from fastchat.train.train import preprocess

    theirs = slow_of_transformers(write_byte_pairs(tmp_path, kind))
    theirs.pad_token = theirs.unk_token
    assert (preprocess([TURNS], theirs)["labels"] == -100).all()
    with pytest.raises(AttributeError, match="legacy"):
        preprocess([TURNS * 2], theirs)


def test_a_run_learns_the_replies_and_their_end(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(write_byte_pairs(tmp_path, kind))
    settings = resolve_policy(LabelSettings(mask_policy="auto"), tokenizer)
    assert settings.mask_policy == "spans" and settings.why.endswith(f"replies that end with {ENDS[kind]}")
    labeller = make_labeller(tokenizer.native, 256, -1, settings, tokenizer=tokenizer, self_test=True)
    seen = _C.explain_record(json.dumps({"conversations": TURNS * 2}), labeller)
    learned = tokenizer.decode([token for token, _, _, is_learned in seen.tokens if is_learned])
    assert learned == f" I am Vicuna.{ENDS[kind]}" * 2
    whole = tokenizer.decode([token for token, *_ in seen.tokens])
    assert whole.endswith(f"USER: Who are you? ASSISTANT: I am Vicuna.{ENDS[kind]}" * 2)
    assert whole.startswith("</s>" if kind == "opt" else "A chat between")


def test_the_saved_model_renders_what_was_trained(kind: str, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "model"
    library_model(kind, vocab_size=704, **SIZES[kind]).save_pretrained(folder)
    write_byte_pairs(folder, kind)
    train(
        model_name_or_path=str(folder), data_path=str(GOLDEN / "trainer/data/first48.json"), use_cpu=True,
        output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, model_max_length=256,
        report_to="none", save_strategy="no", plot_loss=False,
    )  # fmt: skip
    said = " ".join(capsys.readouterr().out.split())
    assert f"replies that end with {ENDS[kind]}" in said and "a rank, estimated" in said
    saved = slow_of_transformers(tmp_path / "out")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert saved.apply_chat_template(messages, tokenize=False).endswith(f"USER: Hi ASSISTANT: Ho{ENDS[kind]}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", "#version: 0.2\na b c\n", "merges.txt: line 2: expected two pieces, got 3"),
        ("vocab.json", '{"a": 0}', "vocab.json: expected an id of '</s>'"),
        ("vocab.json", "[", "vocab.json"),
    ],
)
def test_damaged_files_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (write_byte_pairs(tmp_path, "opt") / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_pretrained(tmp_path)


QWEN_TEXTS = [*TEXTS, "e\u0301 e\u0327\u0301 \u1100\u1161", "<|im_start|>user\nHi<|im_end|>\n",
              "I'LL 1234  \n\n x", "a<|endoftext|>b", " \u00a0x", "\r\n\t!!\n"]  # fmt: skip


@pytest.mark.parametrize("version", [True, False])
def test_ids_of_qwen2_are_those_of_both_tokenizers(version: bool, tmp_path: Path) -> None:
    """The slow one reads the files, the fast one is made of it."""
    from transformers import AutoTokenizer

    ours = Tokenizer.from_pretrained(write_qwen2_pairs(tmp_path, version=version))
    for use_fast in (False, True):
        theirs = AutoTokenizer.from_pretrained(tmp_path, use_fast=use_fast)
        assert type(theirs).__name__ == ("Qwen2TokenizerFast" if use_fast else "Qwen2Tokenizer")
        assert [ours.encode(text, True) for text in QWEN_TEXTS] == [
            theirs(text).input_ids for text in QWEN_TEXTS
        ]
        for name in ("bos_token", "eos_token", "pad_token"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert theirs.convert_tokens_to_ids("<|im_end|>") == ours.convert_tokens_to_ids("<|im_end|>")
    assert not (tmp_path / "tokenizer.json").exists()


def test_auto_finds_the_marks_of_qwen2(tmp_path: Path) -> None:
    settings = resolve_policy(
        LabelSettings(mask_policy="auto"), Tokenizer.from_pretrained(write_qwen2_pairs(tmp_path))
    )
    assert (settings.mask_policy, settings.template) == ("spans", "chatml")


@pytest.mark.parametrize(
    ("kind", "found"), [("RobertaTokenizer", "of RobertaTokenizer"), (None, "no file names")]
)
def test_files_of_another_class_name_the_way_out(kind: str | None, found: str, tmp_path: Path) -> None:
    write_qwen2_pairs(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(ValueError, match=f"got vocab.json and merges.txt .*{found}.*save_pretrained"):
        Tokenizer.from_pretrained(tmp_path)


def test_a_line_of_merges_that_is_no_pair(tmp_path: Path) -> None:
    (write_qwen2_pairs(tmp_path) / "merges.txt").write_text("a b\n\na\n")
    with pytest.raises(ValueError, match=r"merges\.txt: line 3: expected two pieces, got 1"):
        Tokenizer.from_pretrained(tmp_path)


_OPT_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
_END = "<|endoftext|>"


@cache
def _trained(first: tuple[str, ...]) -> dict[str, Any]:
    """Vocabulary and merges of the texts of some conversations; tokens `first` have the first ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=list(first), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    records = json.loads((GOLDEN / "trainer/data/first48.json").read_text())
    texts = [turn["value"] for each in records for turn in each["conversations"]]
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def write_byte_pairs(folder: Path, kind: str) -> Path:
    """The tokenizer of a model of `kind`, opt or gpt2, and its files around it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _trained(tuple(_OPT_TOKENS) if kind == "opt" else ())
    vocab = {**model["vocab"], **({} if kind == "opt" else {_END: len(model["vocab"])})}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    config: dict[str, Any] = {"model_max_length": 1024}
    if kind == "opt":
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        named = {"unk_token": "</s>", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
        tokens = {name: {"content": text, **flags} for name, text in named.items()}
        (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
        typed = {name: {**token, "__type": "AddedToken"} for name, token in tokens.items()}
        config = {"errors": "replace", **typed, "add_prefix_space": False, "add_bos_token": True,
                  "tokenizer_class": "GPT2Tokenizer"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def write_qwen2_pairs(folder: Path, *, version: bool = True) -> Path:
    """Of a Qwen 2: its special tokens are in tokenizer_config.json alone. merges.txt may have no version."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _trained(())
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("\n".join([*(["#version: 0.2"] * version), *merges, ""]), "utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokens = (_END, "<|im_start|>", "<|im_end|>")
    config = {
        "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": _END,
        "unk_token": None, "errors": "replace", "model_max_length": 1024, "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": list(tokens[1:]),
        "added_tokens_decoder": {
            str(len(model["vocab"]) + at): {"content": text, **flags} for at, text in enumerate(tokens)
        },
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
