"""Saved chat templates of Llama tokenizers: transformers makes the ids that were trained, legacy or not."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaTokenizer, LlamaTokenizerFast

from fastsft import _C
from fastsft.data.chat.jinja_form import jinja_form_of, with_bos, without_bos
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.template_choice import choose_template
from fastsft.data.chat.template_saving import trained_source
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import GOLDEN, MODES, human_gpt

# A Llama tokenizer without further tokens ends replies with </s>.
NAMES = [name for name in _C.chat_templates() if _C.find_chat_template(name).stop_token == "</s>"]
ROLES = {"human": "user", "gpt": "assistant"}
DIALOGUES = [("Hi", "Ho"), (" Hi", " Ho ", "He", "\nHa"), ("é你", "1. a\n2. b")]
SYSTEMS = (None, "A short one.", " it's")
BARE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKED = BARE.replace("{{ m.role }}", "<s>{{ m.role }}").replace("%}assistant", "%}<s>assistant")


@cache
def theirs(mode: str) -> tuple[Any, Any]:
    """transformers' slow and fast tokenizer of a directory."""
    folder = GOLDEN / "tokenizers" / mode
    return LlamaTokenizer.from_pretrained(folder), LlamaTokenizerFast.from_pretrained(folder)


def check(mode: str, source: str, using: _C.Labeller, systems: tuple[str | None, ...]) -> None:
    for texts in DIALOGUES:
        for system in systems:
            record = {"conversations": human_gpt(*texts), **({"system": system} if system else {})}
            trained = [token for token, *_ in _C.explain_record(json.dumps(record), using).tokens]
            turns = [
                {"role": ROLES[turn["from"]], "content": turn["value"]} for turn in record["conversations"]
            ]
            messages = [{"role": "system", "content": system}, *turns] if system else turns
            for tokenizer in theirs(mode):
                asked = tokenizer.apply_chat_template(messages, chat_template=source)
                assert asked == trained, (type(tokenizer).__name__, texts, system)


@pytest.mark.covering
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_named_templates(mode: str, name: str) -> None:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode, model_max_length=2048)
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    using = make_labeller(
        native, 2048, 0, LabelSettings(mask_policy="spans", template=name), tokenizer=tokenizer
    )
    source = jinja_form_of(name, native)
    check(mode, source, using, SYSTEMS)
    tokenizer.chat_template = source
    assert choose_template("spans", None, None, tokenizer, native) == (name, None)


@pytest.mark.parametrize("own", [BARE, MARKED])
@pytest.mark.parametrize("mode", MODES)
def test_a_models_own_template(mode: str, own: str, tmp_path: Path) -> None:
    """BOS is written where the template has none, once, and a loaded one is as the base's."""
    model = shutil.copytree(GOLDEN / "tokenizers" / mode, tmp_path / "m")
    (model / "chat_template.jinja").write_text(own)
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=2048)
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    settings = LabelSettings(mask_policy="spans", template="model")
    using = make_labeller(native, 2048, 0, settings, tokenizer=tokenizer)
    saved = trained_source(tokenizer, settings, "model")
    assert (saved == own) == (own is MARKED) and without_bos(saved, True) == own
    check(mode, saved, using, (None,))
    if own is BARE:
        assert saved == with_bos(own, " " if mode == "llama2_nonlegacy" else "")
        assert with_bos(saved, "") == with_bos(own) and with_bos(saved, " ") == with_bos(own, " ")
