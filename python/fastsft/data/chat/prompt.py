"""The ids from which a model writes a reply: those that training has before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.template_choice import template_source
from fastsft.tokenizer.tokenizer import Tokenizer

_LENGTH = 1 << 24
_NAMES = {"user": "human", "assistant": "gpt"}
_REPLY = "x"  # in the place of what is not written yet


class Prompts:
    """Prompts of conversations with one tokenizer and chat template.

    template: a name of `chat_templates()`; by default the model's own, or vicuna_v1.1 for a model without
    one. `name`: of the template. `stop_id`: of the token that ends replies; None where the tokenizer has no
    such token. ValueError for an unknown template.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        if template is None and template_source(tokenizer) is None:
            template = "vicuna_v1.1"
        native = tokenizer.native
        settings = LabelSettings(mask_policy="spans", template=template, train_turns="last")
        self._labeller = make_labeller(native, _LENGTH, -1, settings, tokenizer=tokenizer)
        described = describe(self._labeller)
        self.name = described["template"]
        stop = native.find_token(described["stop_token"])
        self.stop_id: int | None = stop if stop >= 0 else None

    def ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of `messages` ({"role": "system", "user" or "assistant", "content": text}), BOS included.

        The last message is the user's. ValueError for another order of roles than the template takes.
        """
        if not messages or messages[-1]["role"] != "user":
            raise ValueError("expected messages of which the last one is the user's")
        turns = [{"from": _NAMES.get(m["role"], m["role"]), "value": m["content"]} for m in messages]
        record = {"id": "chat", "conversations": [*turns, {"from": "gpt", "value": _REPLY}]}
        seen = _C.explain_record(json.dumps(record), self._labeller)
        prompt: list[int] = []
        for token, _, _, learned in seen.tokens:
            if learned:
                return prompt
            prompt.append(token)
        reasons = [f"{finding.remark}: {finding.reason}" for finding in seen.findings]
        reasons += [str(fault) for fault in seen.faults]
        raise ValueError(f"no prompt for these messages ({'; '.join(reasons) or seen.outcome})")
