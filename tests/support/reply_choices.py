"""Replies that flags choose, each with an independent rule and the settings for it."""

from __future__ import annotations

from typing import Any

from template_conversations import Message


def replies_of(messages: list[Message]) -> list[int]:
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def last(messages: list[Message]) -> list[int]:
    return replies_of(messages)[-1:]


def after_last_user(messages: list[Message]) -> list[int]:
    begin = max(i for i, message in enumerate(messages) if message["role"] == "user")
    return [i for i in replies_of(messages) if i > begin]


def marked(messages: list[Message]) -> list[int]:
    """Mark every second reply, from the end, and return these."""
    chosen = sorted(replies_of(messages)[::-2])
    for i in chosen:
        messages[i]["train"] = True
    return chosen


def without_calls(messages: list[Message]) -> list[int]:
    return [i for i in replies_of(messages) if not messages[i].get("tool_calls")]


CHOICES: dict[str, tuple[Any, dict[str, Any]]] = {
    "last": (last, {"learn": "last"}),
    "old flag": (last, {"train_turns": "last"}),
    "after_last_user": (after_last_user, {"learn": "after_last_user"}),
    "marked": (marked, {"learn": "marked"}),
    "no calls": (without_calls, {"learn_tool_calls": False}),
    "no calls after_last_user": (
        lambda messages: [i for i in without_calls(messages) if i in after_last_user(messages)],
        {"learn": "after_last_user", "learn_tool_calls": False},
    ),
}
