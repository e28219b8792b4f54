"""Make the token ids of prompts, like `apply_chat_template` with `add_generation_prompt`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.template_choice import MODEL, template_source
from fastsft.tokenizer.tokenizer import Tokenizer

_LENGTH = 1 << 24
_NAMES = {"user": "human", "assistant": "gpt"}
_MARK = "4711-0815"  # a message content that is found again in the rendered text
_REPLY = "x"  # stands for the reply to generate


class Prompts:
    """A maker of prompts for a tokenizer with a chat template.

    template: a name in `chat_templates()`; by default the model's own template, or vicuna_v1.1 if the model
    has none. settings: label settings, of which role names, date, chat_template_name and default_system are
    used.
    name: the name of the template in use. stop_id: the id of the token that ends replies; None if
    the tokenizer has no such token. ValueError if the template is unknown.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str | None = None, settings: LabelSettings | None = None
    ) -> None:
        if template is None and template_source(tokenizer) is None:
            template = "vicuna_v1.1"
        native = tokenizer.native
        given = settings or LabelSettings()
        settings = LabelSettings(
            mask_policy="spans", template=template, train_turns="last", role_map=given.role_map,
            role_aliases=given.role_aliases, chat_template_name=given.chat_template_name,
            template_date=given.template_date, default_system=given.default_system,
        )  # fmt: skip
        self._labeller = make_labeller(native, _LENGTH, -1, settings, tokenizer=tokenizer, prompts=True)
        described = describe(self._labeller)
        self.name = described["template"]
        self._tokenizer = tokenizer
        self._is_own = self.name == MODEL
        stop = native.find_token(described["stop_token"])
        self.stop_id: int | None = stop if stop >= 0 else None

    def ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of a prompt, with BOS.

        messages: dictionaries {"role": "system", "user" or "assistant", "content": text}. The last message
        must be a user's. ValueError if the template refuses the order of roles.
        """
        if not messages or messages[-1]["role"] != "user":
            got = f"one of {messages[-1]['role']!r} last" if messages else "none"
            raise ValueError(
                f"expected messages of which the last one is the user's, got {got}; end with "
                '{"role": "user", "content": ...}'
            )
        seen = self._explained(messages)
        return self._prompt(seen, seen.outcome != "excluded")

    def ids_of_record(self, record: Mapping[str, object], data_format: str = "auto") -> list[int]:
        """Return the token ids of a record's prompt, the tokens before its last reply.

        ValueError if the template leaves out a message of the record, as it would in training.
        """
        seen = _C.explain_record(json.dumps(record), self._labeller, 0, data_format)
        return self._prompt(seen, seen.outcome == "noted")

    def _prompt(self, seen: _C.Explanation, is_whole: bool) -> list[int]:
        tokens = itertools.takewhile(lambda each: self._is_own or not each[3], seen.tokens)
        prompt = [token for token, *_ in tokens]
        if prompt and is_whole:
            return prompt
        reasons = [f"{finding.remark}: {finding.reason}" for finding in seen.findings]
        reasons += [str(fault) for fault in seen.faults]
        raise ValueError(f"no prompt for these messages ({'; '.join(reasons) or seen.outcome})")

    def content(self, said: str) -> str:
        """Return the content with which a generated reply is added to the messages of the next prompt.

        said: the generated text. Text that the template itself writes before a content, such as the header of
        gpt-oss's final channel, is removed with all text before it.
        """
        lead = self._lead.strip()
        if not lead:
            return said.strip()
        native = self._tokenizer.native
        if any(native.is_special(token) for token in native.encode(lead.encode())):
            return said.rpartition(lead)[2].strip()
        return said.strip().removeprefix(lead).strip()

    @cached_property
    def _lead(self) -> str:
        """The text between a reply's prompt and its content, as written if another message follows."""
        if not self._is_own:
            return ""
        question = {"role": "user", "content": "Hi"}
        first = self._explained([question]).text_bytes.decode()
        later = self._explained(
            [question, {"role": "assistant", "content": _MARK}, question]
        ).text_bytes.decode()
        follows = later.startswith(first) and _MARK in later
        return later[len(first) :].partition(_MARK)[0] if follows else ""

    def _explained(self, messages: Sequence[Mapping[str, str]]) -> _C.Explanation:
        turns = [{"from": _NAMES.get(m["role"], m["role"]), "value": m["content"]} for m in messages]
        record = {"id": "chat", "conversations": [*turns, {"from": "gpt", "value": _REPLY}]}
        return _C.explain_record(json.dumps(record), self._labeller)
