"""Templates whose prompt depends on the texts of a chat: labels as transformers renders each chat alone.

The text of a whole chat says nothing of it, so chats that look alike have other labels.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import published_models
from fastsft.data.chat.rendering.program import Program
from fastsft.data.chat.rendering.reply_spans import Ends
from template_conversations import call, gives, says, tool, user

END = "<|im_end|>"
TEMPLATE = """
{%- macro given() %}{{ kwargs.city }}{% endmacro -%}
{%- macro said(message) %}{{ message.content }}{% endmacro -%}
{%- set last = messages[-1].content, messages[-1] -%}
{%- set calls = messages[1].tool_calls or [] if messages | length > 1 else [] -%}
{%- set ns = namespace(is_so=false, text=messages[-1].content, count=0) -%}
{%- for each in tools or [] %}{{ '<|im_start|>tool\n' ~ (each | tojson) ~ '<|im_end|>\n' }}{% endfor -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- call.function.name ~ (call.function.arguments | tojson) -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant' -}}
STATEMENTS
{%- if CONDITION %}{{ '\n' }}{% endif -%}
{%- endif -%}
"""
TEXTS = (
    "How is Italy?",
    "How is Norway",
    "Say it in json!",
    "x /no_think",
    "/no_think x",
    "\nHm?",
    "Hm? \n",
    " Hm?",
    "Hm?",
    "7",
    "user",
    "31",
    "<think>a</think>b",
    'He said "no"\\.',
    "é 你 😀?",
    "HM?",
    "A text of many more words than any of the others has, and longer than a mark is?",
    "",
)
# Conditions, each after a statement or "".
CONDITIONS = {
    "word": "'/no_think' in messages[-1].content",
    "no_word": "'json' not in ns.text",
    "word_of_macro": "'json' in said(messages[-1])",
    "word_of_joined": "'user: H' in messages[-1].role ~ ': ' ~ messages[-1].content",
    "word_of_sum": "'userH' in messages[-1].role + messages[-1].content",
    "word_of_all": "'json' in messages | map(attribute='content') | join(' ')",
    "word_of_json": "'\\\\\\\\' in messages[-1].content | tojson",
    "quote_of_json": "'\\\\\"no' in (messages[-1].content | tojson)",
    "length_of_json": "(messages[-1].content | tojson) | length > 12",
    "length_of_messages": "messages | tojson | length > 150",
    "length_of_python": "('' ~ messages) | length > 150",
    "word_of_python": "'no_think x' in messages | string",
    "length": "messages[-1].content | length > 9",
    "length_is": "messages[-1].content | count == 3",
    "longest": "messages | map(attribute='content') | map('length') | max > 20",
    "empty": "messages[-1].content",
    "empty_length": "messages[-1].content | length == 0",
    "empty_default": "messages[-1].content | default('no', true) == 'no'",
    "blank": "messages[-1].content | trim == messages[-1].content",
    "begins": "messages[-1].content.startswith('\\n')",
    "ends": "messages[-1].content.endswith('?')",
    "ends_bare": "(messages[-1].content | safe).endswith('?')",
    "method": "last[0].isupper()",
    "found": "messages[-1].content.find('i') > 1",
    "letter": "messages[-1].content[0] == 'H'",
    "last_letters": "messages[-1].content[-2:] == 'm?'",
    "reversed": "(messages[-1].content | reverse)[0] == '?'",
    "first": "messages[-1].content | first == 'H'",
    "equal": "messages[-1].content == 'Hm?'",
    "equal_texts": "messages[-1].content == messages[0].content",
    "among": "messages[-1].content in ['7', 'Hm?']",
    "among_names": "messages[-1].content in {'7': 1, 'Hm?': 2}",
    "names": "'Hm?' in {messages[-1].content: 1}",
    "looked_up": "{'7': 1, 'Hm?': 2}.get(messages[-1].content)",
    "looked_up_at": "{'7': 1, 'Hm?': 2}[messages[-1].content]",
    "counted": "[messages[-1].content, 'x'].count('Hm?')",
    "order": "messages[-1].content < 'M'",
    "chain": "'A' < messages[-1].content < 'M'",
    "number": "messages[-1].content | int > 8",
    "float": "messages[-1].content | float > 8",
    "words": "messages[-1].content | wordcount > 2",
    "split": "messages[-1].content.split(' ') | length > 2",
    "split_end": "messages[-1].content.split('</think>')[-1] == 'b'",
    "replaced": "messages[-1].content.replace('Hm', '') == '?'",
    "upper": "messages[-1].content | upper == 'HM?'",
    "upper_said": "(said(messages[-1]) | upper).startswith('HM')",
    "formatted": "'%s' % messages[-1].content == '7'",
    "format_method": "'{}!'.format(messages[-1].content) == '7!'",
    "own_format": "messages[-1].content.format() == '7'",
    "escaped": "messages[-1].content | escape | length > 12",
    "times": "(messages[-1].content * 2) | length > 20",
    "picked": "messages | selectattr('content', 'equalto', 'Hm?') | list",
    "picked_roles": "messages | selectattr('role', 'in', seq=[messages[-1].content]) | list",
    "names_of_two": "{messages[0].content: 1, messages[-1].content: 2} | length == 2",
    "names_of_dict": "dict([(messages[0].content, 1), (messages[-1].content, 2)]) | length == 2",
    "chain_among": "'a' in messages[-1].content != 'x'",
    "rejected": "messages | rejectattr('content', 'in', ['Hm?', '7']) | list | length > 2",
    "sorted": "(messages | map(attribute='content') | sort)[0] == '7'",
    "unique": "messages | map(attribute='content') | unique | list | length > 2",
    "unlike": "messages[-1].content is ne('Hm?')",
    "is_in": "messages[-1].content is in(['7', 'Hm?'])",
    "is_lower": "messages[-1].content is lower",
    "messages": "messages[-1] == {'role': 'user', 'content': 'Hm?'}",
    "message_among": "{'role': 'user', 'content': 'Hm?'} in messages",
    "grouped": "messages | groupby('content') | length > 2",
    "strip": "messages[-1].content.strip('H?') == 'm'",
    "stripped": "messages[-1].content.strip() | length == 3",
    "lines": "messages[-1].content.splitlines() | length > 1",
    "listed": "messages[-1].content | list | length > 9",
    "indent": "(messages[-1].content ~ '\\nx') | indent | length > 17",
    "and_or": "(messages[-1].content and 'H') in (messages[-1].content or 'x')",
    "letter_of_safe": "(messages[-1].content | safe)[0] == 'H'",
    "last_of_safe": "(messages[-1].content | safe)[-1] == '?'",
    "safe_list": "'\"' in ([messages[-1].content] | safe) ~ ''",
    "safe_messages": "'json' in (messages | safe) ~ ''",
    "chosen": "('a' if 'H' in messages[-1].content else 'b') == 'a'",
}  # fmt: skip
_SO, _MORE = "{% set ns.is_so = true %}", "{% set ns.count = ns.count + 1 %}"
_HELD = "{%- set held %}", "{% endset -%}"
STATEMENTS = {
    "letters": (f"{{%- for c in ns.text %}}{{% if c == '?' %}}{_SO}{{% endif %}}{{% endfor -%}}", "ns.is_so"),
    "block": (f"{_HELD[0]}{{{{ ns.text }}}}{_HELD[1]}", "held == 'Hm?'"),
    "filtered": (
        f"{_HELD[0]}{{% filter upper %}}{{{{ ns.text }}}}{{% endfilter %}}{_HELD[1]}",
        "held == 'HM?'",
    ),
    "looped": (f"{{%- for m in messages if 'json' in m.content %}}{_SO}{{% endfor -%}}", "ns.is_so"),
    "changed": (
        "{%- for m in messages if m.role == 'user' %}{% if loop.changed(m.content) %}"
        f"{_MORE}{{% endif %}}{{% endfor -%}}",
        "ns.count > 1",
    ),
    "letters_again": (
        f"{{%- for m in ['x'] recursive %}}{_MORE}{{% if loop.depth < 2 %}}"
        "{{- loop(ns.text) }}{% endif %}{% endfor -%}",
        "ns.count > 4",
    ),
    "autoescape": (
        f"{_HELD[0]}{{% autoescape true %}}{{{{ ns.text }}}}{{% endautoescape %}}{_HELD[1]}",
        "'&' in held",
    ),
    "macro": (
        "{%- macro is_json(text) %}{% if 'json' in text %}yes{% endif %}{% endmacro -%}",
        "is_json(ns.text)",
    ),
    "called": (
        "{%- macro of() %}{{ caller() }}{% endmacro %}"
        f"{_HELD[0]}{{% call of() %}}{{{{ ns.text }}}}{{% endcall %}}{_HELD[1]}",
        "'H' in held",
    ),
    "arguments": (
        "{%- macro last() %}{{ varargs | last }}{% endmacro -%}",
        "last(*messages[-1].content) == '?'",
    ),
    "count_of_arguments": (
        "{%- macro count() %}{{ varargs | length }}{% endmacro -%}",
        "count(*messages[-1].content) | int > 10",
    ),
    "filter_arguments": ("", "messages[0].content | default(*messages[-1].content[:1]) | first == 'H'"),
    "unpacked": ("{%- set a, b = (ns.text ~ ' ').split(' ', 1) -%}", "a == 'How'"),
}
OF_CALLS = {
    "name": "tools[0].function.name == 'weather'",
    "description": "'weather' in tools[0].function.description",
    "parameters": "tools[0].function.parameters.properties | length > 1",
    "json": "'city' in tools | tojson",
    "object": "tools[0] == {}",
    "called": "calls and calls[0].function.name in ['weather']",
    "argument": "calls and calls[0].function.arguments.city == 'Rome'",
    "has_argument": "calls and 'city' in calls[0].function.arguments",
    "arguments": "calls and calls[0].function.arguments | length > 1",
    "items": "calls and (calls[0].function.arguments.items() | list)[0][1] == 'Rome'",
    "picked": "calls | selectattr('function.arguments.city') | list",
    "picked_arguments": "calls and [calls[0].function.arguments] | selectattr('city') | list",
    "listed": "calls and (calls[0].function.arguments | list)[0] == 'city'",
    "looked_up": "calls and {'weather': 1}.get(calls[0].function.name)",
    "sum": "calls and (calls[0].function.arguments.x or 0) > 2",
    "names_of_namespace": "calls and namespace(**calls[0].function.arguments).city == 'Rome'",
    "named_arguments": "calls and given(**calls[0].function.arguments) == 'Rome'",
    "safe_arguments": "calls and 'Rome' in (calls[0].function.arguments | safe) ~ ''",
    "safe_tools": "'city' in (tools | safe) ~ ''",
    "id": "calls and calls[0].id.endswith('1')",
    "ids": "calls and messages[2].tool_call_id == calls[0].id",
    "result": "'rain' in messages[-1].content",
    "indented": "(tools | tojson(indent=2)) | length > 300",
    "compact": "'\":\"' in tools | tojson(separators=(',', ':'))",
    "ascii": "'u00e9' in calls | tojson(ensure_ascii=true)",
    "made": "'Rome' in ({'a': (calls or [{'function': 1}])[0].function} | tojson)",
    "dict": "'Rome' in (dict(messages[-2] if calls else {}) | string)",
}  # fmt: skip


# Of calls with one argument: its name becomes a target.
OF_PARTS = {
    "targets": (
        "{%- set nobody = [{'function': {'arguments': ['']}}] -%}"
        "{%- set (a,) = (calls or nobody)[0].function.arguments -%}",
        "a == 'city'",
    ),
    "loop_targets": (
        "{%- for c in calls %}{% for (a,) in [c.function.arguments] %}{% if a == 'city' %}"
        f"{_SO}{{% endif %}}{{% endfor %}}{{% endfor -%}}",
        "ns.is_so",
    ),
    "with_targets": (
        "{%- if calls %}{% with (a,) = calls[0].function.arguments %}{% if a == 'city' %}"
        f"{_SO}{{% endif %}}{{% endwith %}}{{% endif -%}}",
        "ns.is_so",
    ),
}


def source_of(condition: str, statement: str = "") -> str:
    return TEMPLATE.replace("STATEMENTS\n", statement + "\n").replace("CONDITION", condition)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model") / "model"
    published_models.write_tokenizer(folder, "x", ("<|im_start|>", END), {"eos_token": END})
    return PreTrainedTokenizerFast.from_pretrained(folder)


def rendered(tokenizer: Any, source: str, chat: list[Any], tools: Any, prompt: bool) -> str:
    written = tokenizer.apply_chat_template(
        chat, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=prompt
    )
    assert isinstance(written, str)
    return written


def expected(tokenizer: Any, source: str, chat: list[Any], tools: Any) -> str:
    """The learned texts, each after the prompt, with lines between them."""
    whole, learned = rendered(tokenizer, source, chat, tools, False), []
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            upto = rendered(tokenizer, source, chat[: i + 1], tools, False)
            prompt = rendered(tokenizer, source, chat[:i], tools, True)
            assert upto.startswith(prompt) and whole.startswith(upto)
            learned.append(upto[len(prompt) : upto.rindex(END) + len(END)])
    return "\n--\n".join(learned)


def found(program: Program, chat: list[Any], tools: Any) -> str:
    asked = []
    for message in chat:
        more = {name: each for name, each in message.items() if name not in ("role", "content")}
        is_learned = message["role"] == "assistant"
        asked.append((message["role"], message["content"], is_learned, json.dumps(more) if more else ""))
    answer = program.render(None, asked, json.dumps(tools) if tools else "")
    learned, was = [], False
    for text, _, is_learned in answer["pieces"]:
        if is_learned:
            learned[-1:] = [learned[-1] + text] if was else [*learned[-1:], text]
        was = is_learned
    return "\n--\n".join(learned)


def compare(tokenizer: Any, source: str, chats: list[tuple[list[Any], Any]]) -> None:
    """Each chat twice, in both orders: the first of a form are rendered alone by us, too."""
    program = Program(source, {"eos_token": END}, "2026-11-28", False, Ends(END))
    theirs = [expected(tokenizer, source, *chat) for chat in chats]
    assert len({text.count("assistant") for text in theirs}) == 1 and len(set(theirs)) > 1
    pairs = list(zip(chats, theirs, strict=True))
    for chat, text in [*pairs, *reversed(pairs)]:
        assert found(program, *chat) == text, chat


@pytest.mark.parametrize("name", [*CONDITIONS, *STATEMENTS])
def test_each_chat_has_its_own_prompt(name: str, tokenizer: Any) -> None:
    statement, condition = STATEMENTS.get(name) or ("", CONDITIONS[name])
    pairs = [(one, other) for one, other in itertools.product(TEXTS, TEXTS[::6])]
    chats = [[user(one), says("Fine."), user(other), says("So.")] for one, other in pairs]
    tools = [tool("weather", city={"type": "string"})]
    compare(tokenizer, source_of(condition, statement), [(chat, None) for chat in chats])
    compare(tokenizer, source_of(condition, statement), [(chat, tools) for chat in chats])


@pytest.mark.parametrize("name", OF_CALLS)
def test_each_chat_with_calls_has_its_own_prompt(name: str, tokenizer: Any) -> None:
    kinds = [
        [tool("weather", city={"type": "string"}, unit={"type": "string"})],
        [tool("compute", x={"type": "number"})],
    ]
    asked = [
        call("weather", {"city": "Rome"}),
        call("weather", {"city": "Oslo", "é": 1}),
        call("compute", {"x": 1}, 2),
        call("compute", {"x": 3}, 2),
    ]
    chats: list[tuple[list[Any], Any]] = [
        ([user("Hm?"), says("", calls=[one]), gives(result, number=number), says("So.")], tools)
        for one, result, number, tools in itertools.product(asked, ("sun", "rain"), (1, 2), kinds)
    ]
    compare(tokenizer, source_of(OF_CALLS[name]), chats)


@pytest.mark.parametrize("name", OF_PARTS)
def test_parts_of_an_object_become_targets(name: str, tokenizer: Any) -> None:
    tools = [tool("weather", city={"type": "string"})]
    asked = [call("weather", {"city": "Rome"}), call("weather", {"town": "Oslo"}), call("weather", {"x": 1})]
    chats: list[tuple[list[Any], Any]] = [
        ([user("Hm?"), says("", calls=[one]), gives(result), says("So.")], tools)
        for one, result in itertools.product(asked, ("sun", "rain"))
    ]
    statement, condition = OF_PARTS[name]
    compare(tokenizer, source_of(condition, statement), chats)


BLOCKS = """
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.role == 'assistant' -%}
<{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{%- else %}{{ message.content }}<|im_end|>{% endif -%}
{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif -%}
"""


def test_a_block_that_begins_after_the_prompt_was_left() -> None:
    """A reply may have more of the prompt than the first of its form."""
    texts = ["Hm.", "Ha.", "think>\nHm.", "think>Hm.", "think", "thin>"]
    chats = [[user("Hm?"), says(text)] for text in texts]
    alone = [found(Program(BLOCKS, {}, "2026-11-28", False, Ends(END)), chat, None) for chat in chats]
    program = Program(BLOCKS, {}, "2026-11-28", False, Ends(END))
    for _ in range(2):
        assert [found(program, chat, None) for chat in chats] == alone
