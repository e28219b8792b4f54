"""Convert a conversation to the values that Ollama gives to a template (`Execute` in its template.go)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastsft.data.chat.ollama.go_execution import Struct, sorted_maps

Message = Mapping[str, Any]
_PROPERTY = ("anyOf", "type", "items", "description", "enum", "properties", "required")
_PARAMETERS = ("type", "$defs", "items", "required", "properties")


def request(
    messages: Sequence[Message], tools: Sequence[Any] | None = None, think: bool | None = None
) -> dict[str, Any]:
    """Return the values for messages in the form of transformers.

    think: the request's field of that name; None if it has none.
    """
    collated: list[dict[str, Any]] = []
    for message in messages:
        given = _message(message)
        if collated and given["Role"] == collated[-1]["Role"] != "tool":
            collated[-1]["Content"] += "\n\n" + given["Content"]
        else:
            collated.append(given)
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    return {
        "System": "\n\n".join(system), "Messages": collated, "Tools": [_tool(one) for one in tools or ()],
        "Response": "", "Think": bool(think), "IsThinkSet": think is not None, "ThinkLevel": "",
    }  # fmt: skip


def _message(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls") or ()
    return {
        "Role": message["role"], "Content": message.get("content") or "",
        "Thinking": message.get("reasoning_content", ""), "ToolCalls": [_call(one) for one in calls],
        "ToolName": message.get("name", ""), "ToolCallID": message.get("tool_call_id", ""),
    }  # fmt: skip


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = sorted_maps(function["arguments"])
    function = {"Name": function["name"], "Arguments": Struct(arguments)}
    return {"ID": call.get("id", ""), "Function": function}


def _tool(tool: Mapping[str, Any]) -> Struct:
    """Return a tool with the fields that Ollama keeps, in the order in which Ollama writes them."""
    function = tool["function"]
    parameters = _kept(function.get("parameters", {}), _PARAMETERS)
    properties = parameters.get("properties") or {}
    parameters["properties"] = {name: _property(properties[name]) for name in sorted(properties)}
    plain = {**_kept(function, ("name", "description")), "parameters": parameters}
    fields = {"Name": function["name"], "Description": function.get("description", "")}
    inner = Struct(plain, **fields, Parameters=Struct(parameters))
    return Struct({"type": tool.get("type", ""), "function": plain}, Function=inner)


def _property(given: Mapping[str, Any]) -> dict[str, Any]:
    kept = _kept(given, _PROPERTY)
    if "items" in kept:
        kept["items"] = sorted_maps(kept["items"])
    if kept.get("properties"):
        kept["properties"] = {name: _property(one) for name, one in kept["properties"].items()}
    return kept


def _kept(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if given.get(name) not in (None, "", [])}
