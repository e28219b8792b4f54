"""Convert a conversation to the form that chat templates read: messages with their tool calls, and the tools.

A record may have the arguments of tool calls as JSON texts or as objects. They are converted to the form that
the template needs.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

from fastsft.data.chat.rendering.sandbox import Refused

_SURROGATE = re.compile("[\ud800-\udfff]")
Message = tuple[str, str, bool, str]  # role, text, is learned, more fields as JSON or ""


class CallForm(NamedTuple):
    """The form in which a template reads tool calls.

    as_text: arguments are JSON texts instead of objects. null_content: the content of a message that has only
    tool calls is None instead of "".
    """

    as_text: bool = False
    null_content: bool = False


# The names for the field with a reply's thoughts, in templates of (1) Qwen and GLM, (2) vLLM and Gemma, and
# (3) gpt-oss and LFM.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_ALTERED = "\ue000"


class Chat(NamedTuple):
    """The input of a chat template. more: JSON texts of the tools and of the messages' further fields."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    more: tuple[str, ...] = ()

    @property
    def has_more(self) -> bool:
        """True if there are tools, or fields other than role and content."""
        return bool(self.more)

    @property
    def size(self) -> int:
        """The character count in the contents and further fields."""
        return sum(len(message["content"] or "") for message in self.messages) + sum(map(len, self.more))

    def first(self, count: int) -> Chat:
        """Return the chat with only the first `count` messages."""
        return self._replace(messages=self.messages[:count])

    def more_text(self) -> str:
        """Return all texts in the further fields. Special tokens inside these texts count as data."""
        if not self.more:
            return ""
        texts: list[str] = []
        for message in self.messages:
            _add_texts({**message, "role": "", "content": ""}, texts)
        own = _joined(texts)
        return own if self.tools is None else f"{own}\n{_texts_of_tools(self.more[-1])}"


def read_chat(
    system: str | None,
    messages: list[Message],
    tools: str = "",
    form: CallForm | None = None,
    thoughts: str = THOUGHTS[0],
) -> Chat:
    """Return the conversation with its JSON fields parsed. Refused if a field is malformed.

    form: the form of tool calls. By default arguments are objects, as in transformers' documentation and in
    vLLM, which parses the JSON texts of OpenAI's format. thoughts: the template's name for the field with
    thoughts.
    """
    as_text, null_content = form or CallForm()
    chat: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    for role, text, _, more in messages:
        fields = _read(more) if more else {}
        if THOUGHTS[0] in fields:
            fields[thoughts] = fields.pop(THOUGHTS[0])
        if "tool_calls" in fields:
            calls = _list(fields["tool_calls"], "tool_calls")
            fields["tool_calls"] = [_call(call, as_text) for call in calls]
            fields["content"] = None if null_content and not text else text
        chat.append({"role": role, "content": text, **fields})
    given = _tools(tools) if tools else None
    more_json = [more for *_, more in messages if more] + ([tools] if given else [])
    return Chat(chat, given, tuple(more_json))


def read_variables(text: str) -> dict[str, Any]:
    """Return the template's variables of a record. Refused if a field is malformed.

    text: a JSON object of the record's chat_template_kwargs, an object or its JSON text, and enable_thinking,
    which stands above the former. Tables may have a blank text in place of null.
    """
    given = _read(text, "chat_template_kwargs")
    kwargs = given.get("chat_template_kwargs", {})
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        kwargs = json.loads(kwargs if kwargs.strip() else "null") if isinstance(kwargs, str) else kwargs
    variables = {} if kwargs is None else kwargs
    if not isinstance(variables, dict):
        raise Refused(f"chat_template_kwargs: expected an object, got {json.dumps(variables):.60}")
    if "enable_thinking" in given:
        variables = {**variables, "enable_thinking": given["enable_thinking"]}
    variables = {name: value for name, value in variables.items() if value is not None}
    if not isinstance(thinking := variables.get("enable_thinking", True), bool):
        raise Refused(f"enable_thinking: expected true or false, got {json.dumps(thinking):.60}")
    return variables


def altered(chat: Chat, number: int) -> Chat:
    """Return the chat with a change in message `number`: each of its texts gets another first character."""
    message = chat.messages[number]
    texts = {name: _ALTERED + message[name] for name in ("content", *THOUGHTS) if message.get(name)}
    if "tool_calls" in message:
        texts["tool_calls"] = [_altered_call(call) for call in message["tool_calls"]]
    elif message["role"] != "assistant":
        texts.setdefault("content", _ALTERED)
    messages = list(chat.messages)
    messages[number] = {**message, **texts}
    return chat._replace(messages=messages)


def _altered_call(call: Any) -> Any:
    """Change the name and the arguments of a call, but not its id, because templates refuse some ids."""
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return call
    changed = {**function, "name": _ALTERED + function["name"], "arguments": _altered(function["arguments"])}
    return {**call, "function": changed} if "function" in call else changed


def _altered(arguments: Any) -> Any:
    if isinstance(arguments, str):
        return json.dumps(_altered(json.loads(arguments)), ensure_ascii=False)
    return {_ALTERED + name: value for name, value in arguments.items()}


def has_tools(text: str) -> bool:
    """True if the JSON text lists at least one tool, or is malformed."""
    try:
        return bool(text and _tools(text))
    except Refused:
        return True


def _read(text: str, name: str = "tool calls") -> Any:
    """Parse a JSON text that the C++ core has accepted. Refused if Python's parser does not accept it.

    name: what the text holds, for the message.
    """
    try:
        return json.loads(text)
    # Python refuses numbers with thousands of digits and JSON that is nested too deeply.
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} cannot be read: {str(error)[:200]}") from None


@lru_cache(maxsize=16)
def _tools(text: str) -> list[Any] | None:
    """Parse the list of tools.

    Return None for an empty list, for null, and for a blank text, which tables may have in place of null.
    """
    value = _read(text)
    is_none = value is None or (isinstance(value, str) and value.strip() in ("", "null"))
    return None if is_none else [_tool(tool) for tool in _list(value, "tools")] or None


def _tool(tool: Any) -> Any:
    """Return a tool in the form of OpenAI's API. Some data sets have only the function inside this form."""
    is_function = isinstance(tool, dict) and "name" in tool and not tool.keys() & {"type", "function"}
    return {"type": "function", "function": tool} if is_function else tool


def _list(value: Any, name: str) -> list[Any]:
    """Return `value`, a list or the JSON text of a list. Refused if `value` is anything else.

    name: the field's name, for the message.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Refused(f"{name} is a text that is no JSON; expected a list") from None
    if not isinstance(value, list):
        raise Refused(f"{name} is no list")
    return value


def _call(call: Any, as_text: bool) -> Any:
    """Return the call with its arguments in the requested form.

    An object without name and arguments is returned unchanged.
    """
    if not isinstance(call, dict):
        raise Refused("a call of a tool is no object")
    function = call.get("function", call)
    # Some data sets nest a whole call in "function".
    if isinstance(function, dict) and isinstance(function.get("function"), dict):
        function = function["function"]
    if not isinstance(function, dict) or not function.keys() & {"name", "arguments"}:
        return call
    changed = {**function, "arguments": _arguments(function.get("arguments"), as_text)}
    return {**call, "function": changed} if "function" in call else changed


def _arguments(arguments: Any, as_text: bool) -> Any:
    """Return arguments in the requested form. None and a blank text stand for no arguments.

    Refused if a text is not JSON, or if the value is not an object.
    """
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            raise Refused(
                f"arguments of a call is a text that is no JSON; expected an object, got {arguments!r:.60}"
            ) from None
    if value is None:
        return "{}" if as_text else {}
    if not isinstance(value, dict):
        raise Refused(f"arguments of a call: expected an object, got {arguments!r:.60}")
    if not as_text:
        return value
    return arguments if isinstance(arguments, str) else json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=16)
def _texts_of_tools(text: str) -> str:
    return texts_of(_tools(text))


def texts_of(value: Any) -> str:
    """Return all strings in a JSON value, including field names, a line for each."""
    texts: list[str] = []
    _add_texts(value, texts)
    return _joined(texts)


def _joined(texts: list[str]) -> str:
    joined = "\n".join(texts)
    return joined if joined.isascii() else _SURROGATE.sub("\ufffd", joined)


def _add_texts(value: Any, texts: list[str]) -> None:
    """Append all strings in a JSON value, including field names, to `texts`."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            texts.append(name)
            _add_texts(inner, texts)
    elif isinstance(value, list):
        for inner in value:
            _add_texts(inner, texts)
