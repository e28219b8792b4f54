"""Named templates as Jinja: transformers renders what fastsft labels, and the prompts before replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_tokenizers import LEGACY, byte_level_with_specials, llama_with_specials, named
from fastsft import _C
from fastsft.data.chat.jinja_form import jinja_form
from fastsft.data.chat.template_choice import choose_template
from golden_text import human_gpt

NAMES = _C.chat_templates()
ODD = (" a ", 'it\'s \\n "b"\t', "c {{ d }} {% e %}\r\n", "é\u00a0你😀", "\nx\n\n", "'", "<b>&amp;", "-%}")
DIALOGUES = [("Hi", "Ho"), ("Hi", "Ho", "He", "Ha"), ODD]
SYSTEMS = (None, "Be brief.", " it's\n'so'\n", "")
ROLES = {"human": "user", "gpt": "assistant"}


def natives() -> list[Any]:
    return [byte_level_with_specials(), llama_with_specials(LEGACY)]


def renderer(form: str) -> Any:
    """A tokenizer of transformers with this template."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(models.BPE())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=empty, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = form
    return tokenizer


def explained(native: Any, name: str, texts: tuple[str, ...], system: str | None) -> Any:
    options = _C.LabelOptions(mask_policy="spans", chat_template=name, max_length=4096, on_bad_sample="skip")
    record = {"conversations": human_gpt(*texts), **({} if system is None else {"system": system})}
    return _C.explain_record(json.dumps(record), _C.Labeller(native, options))


def as_messages(texts: tuple[str, ...], system: str | None) -> list[dict[str, str]]:
    front = [] if system is None else [{"role": "system", "content": system}]
    turns = [{"role": ROLES[message["from"]], "content": message["value"]} for message in human_gpt(*texts)]
    return front + turns


def text_read(seen: Any, native: Any) -> tuple[str, list[int]]:
    """The text that the model reads, BOS in front included, and where each reply's learned part begins."""
    first, begin, end, _ = seen.tokens[0]
    front = "<s>" if first == native.named.bos and begin == end else ""
    spans = [(begin, end) for begin, end, _, learned in seen.segments if learned]
    starts = [begin for begin, _ in spans if begin not in {end for _, end in spans}]
    encoded = [front + seen.text_bytes[:start].decode() for start in starts]
    return front + seen.text, [len(text) for text in encoded]


@pytest.mark.parametrize("name", NAMES)
def test_transformers_renders_the_text_of_the_labels_and_every_prompt(name: str) -> None:
    for native in natives():
        tokenizer = renderer(jinja_form(name, native.adds_bos, native.named.bos >= 0))
        for texts in DIALOGUES:
            for system in SYSTEMS:
                messages = as_messages(texts, system)
                expected, starts = text_read(explained(native, name, texts, system), native)
                assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
                replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
                prompts = [
                    tokenizer.apply_chat_template(messages[:at], tokenize=False, add_generation_prompt=True)
                    for at in replies
                ]
                assert prompts == [expected[:start] for start in starts]


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_form_is_known_again(name: str) -> None:
    native = llama_with_specials(LEGACY)
    form = jinja_form(name, native.adds_bos, native.named.bos >= 0)
    found, model = choose_template("spans", None, None, named(native, form), native)
    assert (found, model) == (name, None)


def test_what_was_never_trained_is_refused() -> None:
    from jinja2.exceptions import TemplateError

    tokenizer = renderer(jinja_form("vicuna", True, True))
    with pytest.raises(TemplateError, match="trained with user and assistant"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "1"}], tokenize=False)


def test_an_empty_message_is_written_as_fastchat_writes_it() -> None:
    from fastchat.conversation import get_conv_template

    tokenizer = renderer(jinja_form("vicuna", False, True))
    conversation = get_conv_template("vicuna_v1.1")
    for role, text in zip(conversation.roles, ("", "Ho"), strict=True):
        conversation.append_message(role, text)
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": "Ho"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == conversation.get_prompt()
