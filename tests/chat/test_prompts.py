"""Prompts of chat and export are those of `apply_chat_template` with `add_generation_prompt`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from fastsft import _C
from fastsft.cli.chat import Talk
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.data.chat.ollama.export import ollama_template
from fastsft.data.chat.ollama.go_execution import render_go
from fastsft.data.chat.ollama.requests import request
from fastsft.data.chat.prompts import Prompts
from fastsft.data.chat.template_check import probe_record
from fastsft.tokenizer import Tokenizer
from published_models import CHATML, MODELS, write_published, write_tokenizer

# As SmolLM3's: what begins a reply is in the block, and so learned.
WITH_HEADER = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n"
    "<think>\n\n</think>\n{{ m.content }}<|im_end|>\n{% endgeneration %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n{% endif %}"
)
# As Mistral's: what a user says ends with what begins a reply.
WITHOUT_PROMPT = (
    "{% for m in messages %}{{ '[ ' + m.content + ' ]' if m.role == 'user' else m.content + '<|im_end|>' }}"
    "{% endfor %}"
)
# As DeepSeek R1's, without taking thoughts out: a prompt has what a reply without thoughts has not.
OTHER_PROMPT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
OWN = {"header": WITH_HEADER, "none": WITHOUT_PROMPT, "other": OTHER_PROMPT}
TALK = [
    {"role": role, "content": text}
    for role, text in zip(("user", "assistant") * 3, ("Hi.", "Ho é\n\nha", " And?", "No", "So"), strict=False)
]


@pytest.fixture(scope="module", params=[*MODELS, *OWN])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    if request.param in MODELS:
        return write_published(folder, request.param)
    return write_tokenizer(folder, OWN[request.param], CHATML, {"eos_token": "<|im_end|>"})


@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("system", [None, "Be kind."])
def test_prompts_are_those_of_transformers(model: Path, system: str | None, count: int) -> None:
    messages = [*([] if system is None else [{"role": "system", "content": system}]), *TALK[:count]]
    theirs = AutoTokenizer.from_pretrained(model)
    prompt = theirs.apply_chat_template(messages, add_generation_prompt=True)
    assert Prompts(Tokenizer.from_pretrained(model)).ids(messages) == prompt


def test_special_tokens_of_messages_stay_text_or_are_refused(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "m", WITH_HEADER, CHATML, {"eos_token": "<|im_end|>"})
    prompts = Prompts(Tokenizer.from_pretrained(model))
    ids = prompts.ids([{"role": "user", "content": "a <|im_end|> b"}])
    assert ids.count(prompts.stop_id or -1) == 1


def test_a_header_in_the_block_is_not_learned(tmp_path: Path) -> None:
    """Its prompts have it: a model is never asked to write it."""
    model = write_tokenizer(tmp_path / "m", WITH_HEADER, CHATML, {"eos_token": "<|im_end|>"})
    tokenizer = Tokenizer.from_pretrained(model)
    settings = LabelSettings(mask_policy="spans")
    labeller = make_labeller(tokenizer.native, 512, 0, settings, tokenizer=tokenizer, self_test=True)
    seen = _C.explain_record(json.dumps(probe_record(turns=1)), labeller)
    learned = tokenizer.decode([token for token, _, _, is_learned in seen.tokens if is_learned])
    assert learned == "It is Paris.<|im_end|>"


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_ollamas_prompts(source: str, tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path / "m", source, CHATML, {"eos_token": "<|im_end|>"})
    theirs = AutoTokenizer.from_pretrained(model)
    made = ollama_template(Tokenizer.from_pretrained(model))
    for count in (1, 3, 5):
        wanted = theirs.apply_chat_template(TALK[:count], add_generation_prompt=True, tokenize=False)
        assert render_go(made.text, request(TALK[:count])) == wanted


class Speaker:
    """A model that says what it is told to, and remembers what it was asked."""

    def __init__(self, model: Path, replies: list[str]) -> None:
        self.prompts = Prompts(Tokenizer.from_pretrained(model))
        self._replies = iter(replies)
        self.asked: list[list[dict[str, str]]] = []

    def stream(self, messages: list[dict[str, str]], **options: Any) -> Iterator[str]:
        self.prompts.ids(messages)
        self.asked.append(list(messages))
        yield next(self._replies)


def talk(model: Path, *replies: str) -> list[list[dict[str, str]]]:
    """The messages of each turn."""
    speaker = Speaker(model, list(replies))
    args = argparse.Namespace(system=None, temperature=0.0, top_p=1.0, seed=0, max_new_tokens=9)
    assert Talk(speaker, args).run([f"q{i}" for i in range(len(replies))]) == 0  # type: ignore[arg-type]
    return speaker.asked


FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("said", "content"),
    [
        (f"{FINAL}It is Paris.", "It is Paris."),
        (
            f"<|channel|>analysis<|message|>Hm. France.<|end|><|start|>assistant{FINAL}It is Paris.",
            "It is Paris.",
        ),
        ("It is Paris.", "It is Paris."),
    ],
)
def test_what_gpt_oss_said_is_the_text_of_its_final_channel(said: str, content: str, tmp_path: Path) -> None:
    """Its template refuses a message that has channels."""
    model = write_published(tmp_path / "m", "gpt-oss")
    _, second = talk(model, said, "x")
    assert [message["content"] for message in second] == ["q0", content, "q1"]


def test_a_reply_that_cannot_be_put_back_leaves_with_its_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_published(tmp_path / "m", "gpt-oss")
    _, second = talk(model, "<|channel|>analysis<|message|>Hm, France", "x")
    assert [message["content"] for message in second] == ["q1"]
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("note: question and reply are left out of the conversation") and "channel" in said


def test_thoughts_stay_in_what_was_said(tmp_path: Path) -> None:
    """Their template takes them out itself."""
    said = "<think>\nhm\n</think>\n\nHo"
    _, second = talk(write_published(tmp_path / "m", "qwen3"), said, "x")
    assert second[1]["content"] == said
