"""Ollama's prompts by an exported template are those of `apply_chat_template`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

import published_models
import published_templates
from fastsft.data.chat.ollama.export import OllamaTemplate, ollama_template
from fastsft.data.chat.ollama.go_execution import render_go
from fastsft.data.chat.ollama.go_syntax import GoTemplate, parse
from fastsft.data.chat.ollama.requests import request
from fastsft.tokenizer import Tokenizer
from ollama_conversations import TOOLS, Message, plain, talk, with_thoughts, with_tools

DAY = "2027-02-03"
_OF_MISTRAL = (("[INST]", "[/INST]"), {"bos_token": "<s>", "eos_token": "</s>"})


class Family(NamedTuple):
    """What a template has, read off it by a person. calls: the most calls in a reply that it takes."""

    calls: int = 0
    thoughts: bool = False
    system: bool = True


FAMILIES = {
    "qwen2.5": Family(calls=2),
    "qwen3": Family(calls=2, thoughts=True),
    "qwen3-2507": Family(calls=2),
    "llama-3": Family(),
    "llama-3.1": Family(calls=1),
    "llama-3.2": Family(calls=1),
    "gemma-2": Family(system=False),
    "gemma-3": Family(),
    "mistral_v0.1": Family(system=False),
    "mistral": Family(system=False),
    "mistral-nemo": Family(calls=2),
    "mistral-small-3.2": Family(calls=2),
    "ministral-3": Family(calls=2),
}


class Exported(NamedTuple):
    """An exported template, and the tokenizer of transformers that has the chat template."""

    name: str
    made: OllamaTemplate
    go: GoTemplate
    theirs: Any

    def expected(self, chat: list[Message], tools: Any, **more: Any) -> str | None:
        """The prompt without BOS; None if the template refuses the conversation."""
        try:
            text: str = self.theirs.apply_chat_template(
                chat, tools=tools, add_generation_prompt=True, tokenize=False, **more
            )
        except jinja2.TemplateError:
            return None
        return text.removeprefix(self.theirs.bos_token or "")

    def compared(self, chats: list[list[Message]], tools: Any = None, think: bool | None = None) -> int:
        """Compare prompts; return how many the chat template did not refuse."""
        more = {} if think is None else {"enable_thinking": think}
        if self.name == "llama-3.2":
            more["date_string"] = "03 Feb 2027"
        count = 0
        for chat in chats:
            expected = self.expected(chat, tools, **more)
            if expected is not None:
                assert render_go(self.go, request(chat, tools, think), DAY) == expected
                count += 1
        return count


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    name, folder = request.param, tmp_path_factory.mktemp("models") / request.param
    if name in published_templates.PUBLISHED:
        published_templates.write_model(folder, name)
    else:
        source = (published_templates.TEMPLATES / f"{name}.jinja").read_text("utf-8")
        published_models.write_tokenizer(folder, source, *_OF_MISTRAL)
    made = ollama_template(Tokenizer.from_pretrained(folder))
    yield Exported(name, made, parse(made.text), PreTrainedTokenizerFast.from_pretrained(folder))


QUICK = pytest.mark.variants(
    "[qwen2.5]", "[qwen3]", "[llama-3.2]", "[gemma-2]", "[gemma-3]", "[mistral-nemo]"
)


@QUICK
def test_the_prompts(exported: Exported) -> None:
    family = FAMILIES[exported.name]
    today = exported.name == "mistral-small-3.2"  # the date is in the system text that it writes by default
    chats = [chat for chat in plain() if not today or chat[0]["role"] == "system"]
    assert exported.compared(chats) >= (30 if family.system else 21)
    if family.calls:
        chats = [chat for chat in with_tools(family.calls) if not today or chat[0]["role"] == "system"]
        assert exported.compared(chats, TOOLS) >= 30
    if family.thoughts:
        for think in (None, False, True):
            assert exported.compared(with_thoughts(), TOOLS, think) == 24
            assert exported.compared([talk(0, 1), talk(0, 3)], None, think) == 2


@QUICK
def test_what_is_left_out_is_said(exported: Exported) -> None:
    family = FAMILIES[exported.name]
    said = "\n".join(exported.made.notes)
    assert "left out" not in said and "white space" not in said
    assert ("sorts the names of parameters" in said) == bool(family.calls)
    assert ("system texts: the chat template takes none" in said) == (not family.system)
    assert ("$.Tools" in exported.made.text) == bool(family.calls)
    assert ("date: that of each request" in said) == (exported.name in ("llama-3.2", "mistral-small-3.2"))


@QUICK
def test_ollama_reads_the_whole_text_of_the_file(exported: Exported) -> None:
    """It leaves out characters that do not print, and ends the text at three quotation marks."""
    text = exported.made.text
    assert '"""' not in text and all(c.isprintable() or c in "\n\t" for c in text)
