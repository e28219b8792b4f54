"""Conversations for Ollama's templates: plain, with strange white space, with tools, and with thoughts.

Tools have their fields in Ollama's order, and arguments their names sorted, as Ollama gives them.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]
TEXTS = (
    "Hello {{ .System }}?", "Hi\nthere.", "  And you?\t\n", "\n\n Fine. \n", "\u00a0x\u3000", "\u2003<b>\r\n",
    "你 é 😀 👩‍👩‍👧 \u200b", 'Fine """.', "{{", "}} {% raw %}", "a\x0bb\x1c", "\\n \\u003c & <|x|>",
    "Ⅷ\u0085",
)  # fmt: skip
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "Get the weather <now> of a city & its \u2028lake.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": 'a "name"\nof 你'},
            "days": {"type": "integer", "description": "how many"},
            "places": {
                "type": "array", "items": {"enum": ["é", "x"], "type": "string"}, "description": "where"},
            "unit": {"type": "string", "description": "C or F", "enum": ["C", "F"]}}}}},
    {"type": "function", "function": {
        "name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"city": 'Łódź <&> "q"', "days": 3},
    {},
    {"a": [1, 2.5, None, True, [], {}], "b": {"deep": {"x": "\n\t\\", "y": "\u00a0😀"}}},
)
RESULTS = ("sunny 21", '{"sun": "é <1>", "lines": [1,\n2]}\n', ' "quoted" \\ & \t', "")


def talk(first: int, count: int, system: str | None = None) -> list[Message]:
    """Return `count` messages, with the texts from number `first` on."""
    roles = ("user", "assistant")
    chat = [{"role": roles[i % 2], "content": TEXTS[(first + i) % len(TEXTS)]} for i in range(count)]
    return chat if system is None else [{"role": "system", "content": system}, *chat]


def plain() -> list[list[Message]]:
    """Return 65 conversations, of which every third has no system text."""
    chats = []
    for first in range(len(TEXTS)):
        for number, count in enumerate((1, 3, 5, 3, 1)):
            system = (None, "Be 'kind'.", TEXTS[first - 1])[(first + number) % 3]
            chats.append(talk(first, count, system))
    return chats


def calling(number: int, content: str = "", calls: int = 1, thoughts: str = "") -> list[Message]:
    """Return a reply with calls, and the results."""
    names = [TOOLS[i % 2]["function"]["name"] for i in range(calls)]
    made = [
        {"type": "function", "id": f"call0000{i}", "function": {
            "name": name, "arguments": ARGUMENTS[(number + i) % len(ARGUMENTS)]}}
        for i, name in enumerate(names)
    ]  # fmt: skip
    more = {"reasoning_content": thoughts} if thoughts else {}
    results = [
        {
            "role": "tool", "name": name, "content": RESULTS[(number + i) % len(RESULTS)],
            "tool_call_id": f"call0000{i}"}
        for i, name in enumerate(names)
    ]  # fmt: skip
    return [{"role": "assistant", "content": content, "tool_calls": made, **more}, *results]


def with_tools(calls: int) -> list[list[Message]]:
    """Return conversations with tools. calls: the most calls in a reply."""
    chats = []
    for number in range(12):
        system = (None, "Be 'kind'.", " Be\n")[number % 3]
        called = calling(number, ("", "I look.")[number % 2], 1 + number % calls)
        chats.append(talk(number, 1 + 2 * (number % 2), system))
        chats.append([*talk(number, 1, system), *called])
        later = [{"role": "assistant", "content": TEXTS[number]}, {"role": "user", "content": "And?"}]
        chats.append([*talk(number, 1, system), *called, *later])
        chats.append([*talk(number, 1, system), *called, *later, *calling(number + 1, calls=calls)])
    return chats


def with_thoughts() -> list[list[Message]]:
    """Return conversations with thoughts in replies."""
    thought = {"role": "assistant", "content": "\nSo. \n", "reasoning_content": "\nI think <so>.\n\n"}
    chats = []
    for number in range(6):
        called = calling(number, ("", "\nI look.")[number % 2], 1 + number % 2, "Must look.\n")
        chats += [
            [*talk(number, 1), thought, *talk(number + 2, 1)],
            [*talk(number, 1), *called],
            [*talk(number, 1), *called, *calling(number + 1, thoughts="\nAgain.")],
            [*talk(number, 1), *called, thought, *talk(number, 1), *calling(number + 1)],
        ]
    return chats
