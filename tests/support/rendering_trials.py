"""Random chat templates and conversations, rendered as the rendering process does, with all answers checked.

usage: PYTHONPATH=python:tests:tests/support python tests/support/rendering_trials.py SEED COUNT

A trial mutates a published template and renders conversations whose fields hold any JSON. Whatever these do,
an answer has pieces or names its fault in the renderer's own words, the pieces are texts that the core takes,
and asking again, also without the shortcuts of known forms, gives the same answer.

The trials run in a process with the memory limit of the rendering process, which imports no more than that.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import random
import resource
import signal
import subprocess
import sys
import traceback
from collections import Counter
from typing import Any

from fastsft.data.chat.rendering import main as rendering
from fastsft.data.chat.rendering import program as rendering_program
from fastsft.data.chat.rendering.known_forms import KnownForms
from fastsft.data.chat.rendering.sandbox import Fatal, TimeLimit
from template_conversations import CONVERSATIONS

SECONDS = 1.0  # of a request
_TRAITS = (
    "rewrites", "rewrites_thoughts", "takes_system", "lacks_bos", "marks_replies", "tools", "tool_calls",
    "reasoning_content", "short_call_ids", "named_call_ids", "call_ids", "second_system", "later_system",
)  # fmt: skip
# What is put into templates, between their own parts.
_FRAGMENTS = (
    "{% if message.tool_calls %}", "{% endif %}", "{% for m in messages %}", "{% endfor %}", "{% else %}",
    "{{ message.content }}", "{{ messages }}", "{{ messages|tojson }}", "{{ tools|tojson(indent=4) }}",
    "{{ tools }}", "{% generation %}", "{% endgeneration %}", "{{ message.reasoning_content }}",
    "{% set m = messages[-1] %}", "{{ messages|map(attribute='content')|join('|') }}",
    "{{ message.content.split('</think>')[-1] }}", "{{ message.content|length }}", "{{ loop.index }}",
    "{{ message.items()|list }}", "{{ undefined_name.x }}",
    "{{ message.tool_calls[0].function.arguments.items()|first }}", "{{ 'a' * 99 }}", "{{ 1 // 0 }}",
    "{{ '\\ud800' }}", "{{ raise_exception('no') }}", "{{ strftime_now('%Y') }}",
    "{{ message.content|upper }}", "{{ message.content[::-1] }}",
    "{% macro f(x) %}{{ x }}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ range(10**7)|list|length }}",
    "{% break %}", "{{ message.content|trim|replace('a', '') }}", "{% set ns = namespace(x='a') %}",
    "{% set ns.x = ns.x ~ ns.x %}", "{{ message['content'][:3] }}", "{{ enable_thinking }}",
    "{% if enable_thinking is false %}", "{{ caller() }}", "{{ self.x() }}", "{% block x %}{% endblock %}",
    "{{ messages|sort(attribute='content')|list }}", "{# #}", "{% filter upper %}", "{% endfilter %}",
    "{% call f() %}", "{% endcall %}", "{{ '%s' % message.content }}", "{{ message.content.encode() }}",
    "{{ ('x' ~ message.content).center(90) }}", "{{ dict(a=message) }}",
)  # fmt: skip
_TEXTS = (
    "", " ", "\n", "<think>", "</think>", "<think>\n\n</think>\n\n", "<think>a</think>b", "{{ x }}{% y %}",
    "a" * 3000, "\u2028", "\ue000", "\ue0001-00000\ue001", "\ue002", "\ue004\ue005", "<|im_end|>", "</s>",
    "[INST]", "assistant", "\ufffd", "é你😀", "\x00", "</tool_call>", '{"name": "f"}', "null", "[]",
)  # fmt: skip
_VALUES = (
    None, True, False, 0, -1, 2.5, 1e308, float("inf"), 10**30, [], {}, [[]], [None], "", "x", "{", "[]",
    "{}", '"x"', "\ud800", {"function": {"function": {"name": "f"}}}, {"name": "f"}, {"arguments": "{}"},
    {"items": 1, "get": 2, "keys": 3}, {"function": "f"}, [{"function": {"name": 5, "arguments": [1]}}],
    {"id": 5}, {"": {"": ""}}, {"name": None},
)  # fmt: skip
_VARIABLES = ("enable_thinking", "chat_template_kwargs")
_NAMES = (
    "messages", "self", "loop", "range", "namespace", "raise_exception", "bos_token", "tools", "x y", "",
    "thinking", "enable_thinking", "documents", "content", "message", "strftime_now", "caller", "ns",
)  # fmt: skip


class Trial:
    """One template with some conversations, drawn by a seed.

    templates: [text, named tokens, the tokens that end replies, those of the next turn or null] of each.
    """

    def __init__(self, seed: int, templates: list[Any]) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._templates = templates

    def run(self) -> None:
        """Render a few conversations, several times each, with one template."""
        source, named, ends, next_turn = self.random.choice(self._templates)
        ends = ends[:2] or (next_turn or [""])[:1]
        settings = {
            "source": self._source(source), "tokens": named, "date": "2026-11-26",
            "adds_bos": self.random.random() < 0.3,
            "ends": self.random.choice([[], ends, [*ends[:1], "", True]]),
            "for_tools": self.random.random() < 0.1,
        }  # fmt: skip
        try:
            programs, alone = rendering.Programs(dict(settings)), rendering.Programs(dict(settings))
        except Fatal as error:
            self.counts["does not compile"] += 1
            assert str(error), settings
            return
        for probe in ("endings", *self.random.sample(_TRAITS, 3)):
            self._check(rendering._answer(programs, probe, SECONDS))
        for _ in range(3):
            self._render(programs, alone, self._request())

    def _render(self, programs: Any, alone: Any, request: list[Any]) -> None:
        asked: Any = {"prompt": request} if self.random.random() < 0.2 else request
        answers = [self._asked(programs, asked) for _ in range(3)]
        with _WithoutForms():
            answers.append(self._asked(alone, asked))
        for answer in answers:
            self._check(answer)
        if any("takes more than" in answer.get("failure", "") for answer in answers):
            return
        assert all(answer == answers[-1] for answer in answers), (answers, request)

    def _asked(self, programs: Any, request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            json.dumps(rendering._answer(programs, copy.deepcopy(request), SECONDS))
        )
        return answer

    def _check(self, answer: dict[str, Any]) -> None:
        kinds = answer.keys() & {"failure", "fatal", "pieces", "trait", "endings"}
        assert len(kinds) == 1, answer
        kind = kinds.pop()
        self.counts[kind] += 1
        if kind in ("failure", "fatal"):
            assert answer[kind] and "Traceback" not in answer[kind], answer
            answer[kind].encode()
        if kind != "pieces":
            return
        assert answer["needs_rows"] or answer["pieces"] == [] or all(piece[0] for piece in answer["pieces"])
        "".join(piece[0] for piece in answer["pieces"]).encode()  # no lone surrogate
        answer["more"].encode()
        assert type(answer["rewritten"]) is int and answer["rewritten"] >= -1

    def _source(self, source: str) -> str:
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 4))):
            source = self.mutated(source)
        return source

    def mutated(self, source: str) -> str:
        """Return a template with a random change."""
        begin = self.random.randrange(len(source) + 1)
        end = min(begin + self.random.randrange(80), len(source))
        kind = self.random.randrange(5)
        if kind == 0:
            return source[:begin] + source[end:]
        if kind == 1:
            return source[:begin] + source[begin:end] * 2 + source[end:]
        if kind == 2:  # splice two templates where a tag begins
            other = self.random.choice(self._templates)[0]
            first, second = (text.find("{%", self.random.randrange(len(text))) for text in (source, other))
            return source[:first] + other[second:] if min(first, second) >= 0 else source
        at = source.find("{%" if kind == 3 else "{{", begin)
        return source[:at] + self.random.choice(_FRAGMENTS) + source[at:] if at >= 0 else source

    def _request(self) -> list[Any]:
        """Return a request in the form of `ModelTemplate`, with some of its values replaced."""
        messages, tools = self.random.choice(list(CONVERSATIONS.values()))
        system = messages[0]["content"] if messages[0]["role"] == "system" else None
        asked = [self._message(message) for message in messages[system is not None :]]
        if self.random.random() < 0.3:  # only the last reply
            asked = [(role, text, message is asked[-1], more) for message in asked
                     for role, text, _, more in [message]]  # fmt: skip
        given = json.dumps(self._value(tools)) if tools else ""
        variables = {name: self._variable(name) for name in _VARIABLES if self.random.random() < 0.15}
        if self.random.random() < 0.1:
            system = self._text(system or "")
        return [system, asked, given, json.dumps(variables) if variables else ""]

    def _message(self, message: dict[str, Any]) -> tuple[str, str, bool, str]:
        more = {name: value for name, value in message.items() if name not in ("role", "content")}
        for name in ("reasoning_content", "tool_call_id", "name"):  # the core takes texts alone
            if name in more:
                more[name] = self._text(more[name])
        if "tool_calls" in more:
            more["tool_calls"] = self._value(more["tool_calls"]) or [None]
        role = message["role"]
        text = json.dumps(more) if more else ""
        return role, self._text(message["content"]), role == "assistant", text

    def _variable(self, name: str) -> Any:
        if name == "enable_thinking":
            return self.random.choice((True, False, None, "", 1))
        inner = {self.random.choice(_NAMES): self.random.choice(_VALUES) for _ in range(2)}
        return self.random.choice((inner, json.dumps(inner), *_VALUES))

    def _text(self, text: str) -> str:
        if self.random.random() < 0.85:
            return text
        return self.random.choice((self.random.choice(_TEXTS), text + self.random.choice(_TEXTS)))

    def _value(self, value: Any) -> Any:
        """Return a JSON value with random parts replaced."""
        if self.random.random() < 0.03:
            return self.random.choice(_VALUES)
        if isinstance(value, dict):
            return {key: self._value(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._value(part) for part in value]
        return self._text(value) if isinstance(value, str) else value


class _WithoutForms:
    """Replies are found in each chat's own text inside this context."""

    def __enter__(self) -> None:
        self._find = KnownForms.find
        KnownForms.find = lambda *_: None  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        KnownForms.find = self._find  # type: ignore[method-assign]


def _on_alarm(*_: object) -> None:
    raise TimeLimit


def run_trials(seed: int, count: int) -> int:
    """Run trials with the limits of the rendering process; print what went wrong.

    The templates are on standard input, as JSON.
    """
    templates = json.load(sys.stdin)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (rendering.MEMORY_LIMIT, rendering.MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, _on_alarm)
    # Answers of two programs are compared.
    rendering_program.secrets.randbelow = lambda limit: 123456789012345678 % limit  # type: ignore[assignment]
    counts = Counter[str]()
    for number in range(seed * 1_000_000, seed * 1_000_000 + count):
        trial = Trial(number, templates)
        try:
            trial.run()
        except BaseException:
            print(f"trial {number}:", file=sys.stderr)
            traceback.print_exc()
            return 1
        counts += trial.counts
    print(json.dumps(counts))
    return 0


def templates() -> list[Any]:
    """Return what `Trial` mutates: all published templates, and those with generation blocks."""
    import assistant_masks
    from published_templates import PUBLISHED, source_of

    named = [(source_of(name), of) for name, of in PUBLISHED.items()]
    for name in assistant_masks.names():
        named.append((assistant_masks.source_of(name), assistant_masks.published(name)))
    return [[source, of.named, of.ends, of.next_turn] for source, of in named]


def start(seed: int, count: int) -> dict[str, int]:
    """Run trials in a process of their own, and return how many answers of each kind there were."""
    words = [sys.executable, __file__, str(seed), str(count), "trials"]
    done = subprocess.run(words, input=json.dumps(templates()), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


if __name__ == "__main__":
    if sys.argv[3:] == ["trials"]:
        sys.exit(run_trials(int(sys.argv[1]), int(sys.argv[2])))
    print(start(int(sys.argv[1]), int(sys.argv[2])))
