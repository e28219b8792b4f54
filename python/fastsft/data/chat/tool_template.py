"""A model with two templates of its own: one for chats with tools, `tool_use`, one for others.

As in transformers' `apply_chat_template`, the tools of a record decide which one writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastsft.data.chat.asked_chat import has_tools
from fastsft.data.chat.input_probes import CALL_IDS
from fastsft.data.chat.template import Asked, ModelTemplate, Rendered
from fastsft.runtime.messages import tell
from fastsft.tokenizer.trained_template import TOOL_TEMPLATE

if TYPE_CHECKING:
    from fastsft import _C

Write = Callable[[Sequence[Asked]], list[Rendered]]
_CALLS, _NAME = '"tool_calls": ', f"--chat_template_name {TOOL_TEMPLATE}"
_NO_TOOLS = (
    "it calls tools and has none: as in transformers the template default writes it, which writes no calls; "
    f"{_NAME} takes that one for all records"
)


class TemplateWithTools:
    """The template `default`, with `tools` for chats that have tools; otherwise as `ModelTemplate`."""

    def __init__(self, default: ModelTemplate, tools: ModelTemplate) -> None:
        self.default, self.tools = default, tools
        self.stop_token, self.reply_ending = default.stop_token, default.reply_ending
        self.call_stop_token = tools.call_stop_token or default.call_stop_token
        self.date = default.date
        self.asks_for_date = default.asks_for_date or tools.asks_for_date

    @property
    def digest(self) -> str:
        """Of both."""
        return hashlib.sha256(f"{self.default.digest} {self.tools.digest}".encode()).hexdigest()

    def __call__(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        return self._each(dialogues, self.default, self.tools)

    def prompts(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        return self._each(dialogues, self.default.prompts, self.tools.prompts)

    def _each(self, dialogues: Sequence[Asked], write: Write, write_with_tools: Write) -> list[Rendered]:
        chosen = [has_tools(tools) for *_, tools in dialogues]
        pairs = list(zip(dialogues, chosen, strict=True))
        with_tools = iter(write_with_tools([one for one, has in pairs if has]))
        others = iter(write([one for one, has in pairs if not has]))
        return [
            next(with_tools) if has else self._without_lost_calls(one, next(others)) for one, has in pairs
        ]

    def _without_lost_calls(self, dialogue: Asked, written: Rendered) -> Rendered:
        if "tool_calls" in self.default.fields or not any(_CALLS in more for *_, more in dialogue[1]):
            return written
        return [], False, True, _NO_TOOLS, "", -1

    @property
    def rewrites(self) -> bool:
        return self.default.rewrites or self.tools.rewrites

    @property
    def rewrites_thoughts(self) -> bool:
        return self.default.rewrites_thoughts or self.tools.rewrites_thoughts

    @property
    def marks_replies(self) -> bool:
        return self.default.marks_replies

    @property
    def fields(self) -> list[str]:
        """Those of tools and calls; thoughts and system messages only where both write them."""
        both = set(self.default.fields) & set(self.tools.fields)
        of_tools = ("tools", "tool_calls", *CALL_IDS)
        return [name for name in self.tools.fields if name in of_tools or name in both]

    def close(self) -> None:
        self.default.close()
        self.tools.close()


OwnTemplate = ModelTemplate | TemplateWithTools


def own_template(
    source: str, tool_source: str | None, tokenizer: object, native: _C.Tokenizer, day: str | None
) -> OwnTemplate:
    """The template `source`, with `tool_source` for chats with tools where that can be trained with it.

    A line says where it cannot. ValueError for a `source` that cannot be used.
    """
    plain = ModelTemplate(source, tokenizer, native, day=day)
    if tool_source is None:
        return plain
    try:
        tools = ModelTemplate(tool_source, tokenizer, native, day=day, for_tools=True)
        problem = _problem(plain, tools)
    except ValueError as error:
        problem = str(error)
    if problem:
        tell(f"chat template: {TOOL_TEMPLATE} is not taken for records with tools: {problem}")
        return plain
    return TemplateWithTools(plain, tools)


def _problem(plain: ModelTemplate, tools: ModelTemplate) -> str:
    if tools.stop_token != plain.stop_token:
        return f"it ends replies with {tools.stop_token}, the default one with {plain.stop_token}"
    if "tools" not in tools.fields:
        return "it writes no tools"
    calls = {each.call_stop_token for each in (plain, tools) if "tool_calls" in each.fields}
    return "it ends calls otherwise than the default one" if len(calls) > 1 else ""
