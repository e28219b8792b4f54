"""Settings beside a tokenizer.json that decide ids, and what runs in the `tokenizers` library instead."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from byte_level_files import content, write_directory
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt

END = "<|endoftext|>"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}


def load(folder: Path, text: str, config: dict[str, Any]) -> tuple[Tokenizer, Any]:
    from transformers import AutoTokenizer

    write_directory(folder, text, config)
    return Tokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def llama() -> str:
    with gzip.open(GOLDEN / "tokenizers" / "llama2_fast.json.gz", "rt", encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": False, "add_eos_token": True, "eos_token": "<unk>"},
    ],
)
def test_what_llamas_class_puts_around_a_text(config: dict[str, Any], tmp_path: Path, caplog: Any) -> None:
    """The class decides, whatever the file's post-processor says; without names it takes its own."""
    ours, theirs = load(tmp_path, llama(), {"tokenizer_class": "LlamaTokenizer", **config})
    assert "the tokenizers library runs it" not in caplog.text
    for text in ("Hi", "", " a</s>"):
        assert ours.encode(text, add_special_tokens=True) == theirs.encode(text), text
    for name in ("bos_token_id", "eos_token_id", "unk_token_id"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("in_front", [False, True])
def test_one_token_as_bos_and_eos_stays_on_its_side(in_front: bool, tmp_path: Path) -> None:
    file = {**content("gpt2"), "normalizer": {"type": "Lowercase"}}
    end = {"SpecialToken": {"id": END, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    file["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [end, text] if in_front else [text, end],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {END: {"id": END, "ids": [50256], "tokens": [END]}},
    }
    ours, theirs = load(tmp_path, json.dumps(file), {**FAST, "bos_token": END})
    assert ours.encode("hi", add_special_tokens=True) == theirs.encode("hi")


@pytest.mark.parametrize(
    ("in_file", "in_config"),
    [(False, {"add_prefix_space": True}), (True, {}), (True, {"add_prefix_space": None})],
)
def test_prefix_space_in_the_library(in_file: bool, in_config: dict[str, Any], tmp_path: Path) -> None:
    file = {**content("gpt2"), "normalizer": {"type": "Lowercase"}}
    file["pre_tokenizer"]["add_prefix_space"] = in_file
    ours, theirs = load(tmp_path, json.dumps(file), {**FAST, **in_config})
    assert ours.encode("Hi there") == theirs.encode("Hi there")


@pytest.mark.parametrize(
    ("edit", "reason"), [({"dropout": 0.1}, "model.dropout is 0.1"), ({"dropout": 0.0}, "")]
)
def test_dropout(edit: dict[str, Any], reason: str, tmp_path: Path, caplog: Any) -> None:
    """Random ids would differ between ranks."""
    file = content("gpt2")
    file["model"].update(edit)
    write_directory(tmp_path, json.dumps(file), FAST)
    if reason:
        with pytest.raises(ValueError, match=reason):
            Tokenizer.from_pretrained(tmp_path)
    else:
        assert Tokenizer.from_pretrained(tmp_path).encode("hello") == [31373]
        assert "the tokenizers library runs it" not in caplog.text


@pytest.mark.parametrize("has_model", [False, True])
def test_split_special_tokens_is_refused(has_model: bool, tmp_path: Path) -> None:
    write_directory(tmp_path, llama(), {"split_special_tokens": True})
    if has_model:
        model = GOLDEN / "tokenizers" / "llama2_legacy" / "tokenizer.model"
        (tmp_path / "tokenizer.model").write_bytes(model.read_bytes())
    with pytest.raises(ValueError, match="split_special_tokens would spell"):
        Tokenizer.from_pretrained(tmp_path)


# GPT-2 has no token for U+20BB7: it takes four, and the prompt ends with one.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} \U00020bb7{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant \U00020bb7{% endif %}"
)


@pytest.mark.parametrize("normalizer", [None, {"type": "NFKC"}])
def test_characters_of_several_tokens_at_the_borders_of_a_reply(normalizer: Any, tmp_path: Path) -> None:
    """The tokens of the prompt's last character are not learned, those of the reply's first and last are."""
    write_directory(tmp_path, json.dumps({**content("gpt2"), "normalizer": normalizer}), FAST)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    ours = Tokenizer.from_pretrained(tmp_path)
    assert isinstance(ours.native, _C.LibraryTokenizer) == (normalizer is not None)
    chosen = LabelSettings(mask_policy="spans")
    labeller = make_labeller(ours.native, 512, -1, chosen, tokenizer=ours, self_test=True)
    for reply in ("Ho", "\U00020bb7Ho\U00020bb7", "\u00e9"):
        record = {"conversations": human_gpt("Hi", reply)}
        seen = _C.explain_record(json.dumps(record), labeller)
        learned = [token for token, *_, is_learned in seen.tokens if is_learned]
        assert learned == ours.encode(f"{reply}{END}"), reply
        assert b"".join(seen.text_bytes[a:b] for _, a, b, _ in seen.tokens) == seen.text_bytes
