"""Records in the form in which other frameworks get them."""

from __future__ import annotations

import json
from typing import Any


def record_for_others(text: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return a record for a framework, from the JSON of `_C.SurveyedRecord.json`; else None and the reason.

    The record has "messages" in the form of transformers' chat templates, with the record's system text as
    the first, and "tools" and "chat_template_kwargs" if there are any. Train marks stay as "train", in case a
    framework reads them.
    """
    record = json.loads(text)
    if "fault" in record:
        return None, str(record["fault"])
    messages = record["messages"]
    if any(message is None for message in messages):
        return None, "a message is no object"
    if not messages:
        return None, "no messages"
    system = record.get("system")
    if system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    made: dict[str, Any] = {"messages": [_message(message) for message in messages]}
    tools = _loaded(record.get("tools"))
    if tools:
        made["tools"] = [_tool(tool) for tool in tools] if isinstance(tools, list) else tools
    variables = _variables(record.get("variables", {}))
    if variables:
        made["chat_template_kwargs"] = variables
    return made, ""


def _variables(given: dict[str, Any]) -> dict[str, Any]:
    """Return the record's variables of its chat template, by their names there."""
    named = given.get("chat_template_kwargs")
    switch = {"enable_thinking": given["enable_thinking"]} if "enable_thinking" in given else {}
    return {**(named if isinstance(named, dict) else {}), **switch}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with its calls as a list in which arguments are objects."""
    made = dict(message)
    calls = _loaded(message.get("tool_calls"))
    if calls:
        made["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    if made["role"] == "tool" and not isinstance(made.get("content"), str):
        made["content"] = json.dumps(made.get("content"), ensure_ascii=False)
    return made


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function = dict(call.get("function", call))
    function["arguments"] = _loaded(function.get("arguments")) or {}
    return {**({"id": call["id"]} if call.get("id") else {}), "type": "function", "function": function}


def _tool(tool: Any) -> Any:
    bare = isinstance(tool, dict) and "function" not in tool
    return {"type": "function", "function": tool} if bare else tool


def _loaded(value: Any) -> Any:
    """Return the value of a JSON text, and other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
