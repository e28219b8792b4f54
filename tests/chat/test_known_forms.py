"""Reply places of known forms, and tojson: as when each prefix of each chat is rendered by itself."""

from __future__ import annotations

import copy
import json
import random
import signal
from typing import Any

import pytest

from fastsft.data.chat.rendering import known_forms
from fastsft.data.chat.rendering.known_forms import KnownForms
from fastsft.data.chat.rendering.program import Program
from fastsft.data.chat.rendering.reply_spans import Ends
from fastsft.data.chat.rendering.sandbox import Fatal, JsonTexts, Refused, TimeLimit
from published_templates import PUBLISHED, source_of
from template_conversations import CONVERSATIONS

WITH_JSON = ("llama-3.1", "qwen3", "qwen2.5", "granite-4.0", "smollm3")
TEXTS = (
    "Rain.",
    '{"a": "b\\n"}',
    " two\nlines \n",
    "<think>\nHm.\n</think>\n\nSo.",
    "\nx",
    "é 你 😀",
    "</think>",
)


def altered(value: Any, number: int) -> Any:
    """With other texts, the same wherever they were the same; roles and kinds stay."""
    if isinstance(value, str):
        return f"{TEXTS[(number + len(value)) % len(TEXTS)]}{value}{number}"
    if isinstance(value, list):
        return [altered(each, number) for each in value]
    if isinstance(value, dict):
        kept = ("role", "type", "id", "tool_call_id", "name", "parameters")
        return {name: each if name in kept else altered(each, number) for name, each in value.items()}
    return value


def requests(number: int) -> list[list[Any]]:
    """Of each conversation, all replies and the last one learned, as the core asks for them."""
    found = []
    for messages, tools in CONVERSATIONS.values():
        chat = messages if number == 0 else altered(messages, number)
        system = chat[0]["content"] if chat[0]["role"] == "system" else None
        for only_last in (False, True):
            asked = []
            for message in chat if system is None else chat[1:]:
                more = {name: each for name, each in message.items() if name not in ("role", "content")}
                is_learned = message["role"] == "assistant" and (not only_last or message is chat[-1])
                text = json.dumps(more) if more else ""
                asked.append((message["role"], message["content"], is_learned, text))
            given = json.dumps(altered(tools, number) if number else tools) if tools else ""
            found.append([system, asked, given])
    return found


def answer(program: Program, request: list[Any]) -> Any:
    try:
        return program.render(*copy.deepcopy(request))
    except (Refused, Fatal) as error:
        return type(error), str(error)


def make_program(name: str) -> Program:
    named, ends = (
        PUBLISHED.get(name, PUBLISHED["hermes-3"]).named,
        PUBLISHED.get(name, PUBLISHED["hermes-3"]).ends,
    )
    return Program(source_of(name), named, "2026-11-26", False, Ends(*ends[:1] or ("<|user|>", "", True)))


@pytest.mark.variants("[llama-3.1]", "[qwen3]", "[qwq]")
@pytest.mark.parametrize("name", [*PUBLISHED, "hermes-3-tool_use"])
def test_replies_are_where_each_prefix_has_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(name)
    asked = [request for number in range(len(TEXTS) + 1) for request in requests(number)]
    found = [answer(program, request) for request in asked]
    monkeypatch.setattr(KnownForms, "find", lambda *_: None)
    alone = make_program(name)
    for request, ours in zip(asked, found, strict=True):
        assert ours == answer(alone, request), request


@pytest.mark.parametrize("name", WITH_JSON)
def test_a_form_is_rendered_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second chat of a form on, a chat is rendered once, whatever its tools, names and arguments."""
    program, rendered = make_program(name), []
    messages, tools = CONVERSATIONS["call_two_turns"]
    written = program.text
    monkeypatch.setattr(program, "text", lambda *asked: rendered.append(asked) or written(*asked))
    for number in range(5):
        if number == 2:
            rendered.clear()
        chat = copy.deepcopy(messages)
        for message in chat:
            message["content"] = message["content"] and f"{message['content']} {number}"
            for call in message.get("tool_calls", ()):
                call["function"] = {"name": f"f{number}", "arguments": {"x" * number or "y": [number, "é"]}}
        more = [{k: v for k, v in m.items() if k not in ("role", "content")} for m in chat]
        is_learned = [message is chat[-1] for message in chat]
        asked = [
            (m["role"], m["content"], learned, json.dumps(rest) if rest else "")
            for m, learned, rest in zip(chat, is_learned, more, strict=True)
        ]
        given = json.dumps(
            [{**each, "function": {**each["function"], "description": str(number)}} for each in tools]
        )
        assert answer(program, [None, asked, given])["pieces"]
    assert len(rendered) == 3


def plain(number: int, turns: int = 2) -> list[Any]:
    texts = [("user", f"Question {number}?"), ("assistant", f"Answer {number}.")] * turns
    return [None, [(role, text, role == "assistant", "") for role, text in texts], ""]


def learned(answered: Any) -> list[str]:
    return [text for text, _, is_learned in answered["pieces"] if is_learned]


def expected(number: int) -> list[str]:
    """Of `plain`, with the end of llama-3's template, which writes texts and no more."""
    return [f"Answer {number}.<|eot_id|>"] * 2


@pytest.mark.parametrize("error", [Refused, Fatal, TimeLimit, MemoryError, RecursionError])
def test_a_chat_is_labelled_where_its_form_has_no_skeleton(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(KnownForms, "_made", fails)
    program = make_program("llama-3")
    for number in range(4):
        assert "".join(learned(program.render(*plain(number)))) == "".join(expected(number))


def test_a_skeleton_that_takes_long_leaves_time_for_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        while True:
            pass

    def on_alarm(*_: object) -> None:
        raise TimeLimit

    monkeypatch.setattr(KnownForms, "_made", endless)
    program = make_program("llama-3")
    before = signal.signal(signal.SIGPROF, on_alarm)
    try:
        for number in range(4):
            signal.setitimer(signal.ITIMER_PROF, 1.0)
            assert "".join(learned(program.render(*plain(number)))) == "".join(expected(number))
            left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
            assert 0.3 < left < 0.6 if number == 1 else left > 0.9  # its form is not tried again
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def test_forms_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_forms, "_MOST", 1 << 16)
    program = make_program("llama-3")
    for turns in range(1, 60):
        for number in range(3):
            assert "".join(learned(program.render(*plain(number, turns)))).count(f"Answer {number}.") == turns
            kept = [each for each in program._forms._forms.values() if each]
            assert sum(each.size for each in kept) <= program._forms._size
            assert program._forms._size <= 1 << 16 or len(kept) == 1


def test_marks_that_the_template_refuses_refuse_no_chat() -> None:
    source = (
        "{% for m in messages %}{% if m.content | length > 20 %}{{ raise_exception('long') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    program = Program(source, {}, "2026-11-26", False, Ends("<|im_end|>"))
    for number in range(4):
        texts = [f"Answer {number}.<|im_end|>"] * 2
        assert "".join(learned(program.render(*plain(number)))) == "".join(texts)
    with pytest.raises(Refused, match="long"):
        program.render(*plain(10**20))


ODD: list[Any] = [None, True, 1.5, -3, 'a "b"\n\\ \u2028\x00é你', float("inf"), {}, [], {1: [2, {"a": "\n"}]}]


def value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(3) if depth < 4 else 0
    if kind == 0:
        return draw.choice(ODD)
    inner = [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return inner if kind == 1 else {f"k{i}\n": each for i, each in enumerate(inner)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indent": 4},
        {"indent": 1},
        {"indent": 0},
        {"indent": 2, "sort_keys": False},
        {"separators": (",", ":")},
        {"ensure_ascii": True, "indent": 3},
    ],
)
def test_texts_are_those_of_json(options: dict[str, Any]) -> None:
    draw, texts = random.Random(1), JsonTexts()
    for _ in range(2000):
        one = value(draw)
        expected = json.dumps(one, **{"ensure_ascii": False, **options})
        assert texts.write(one, **options) == expected == texts.write(one, **options)


def test_equal_objects_and_other_options_have_texts_of_their_own() -> None:
    texts, one = JsonTexts(), {"a": [1]}
    assert texts.write(one) == '{"a": [1]}' and texts.write(one, separators=(",", ":")) == '{"a":[1]}'
    for number in range(5000):  # of objects whose place in memory may be the same
        assert texts.write({"a": number}) == f'{{"a": {number}}}'
