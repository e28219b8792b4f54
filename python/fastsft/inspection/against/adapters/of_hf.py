"""Labels of transformers: `apply_chat_template(return_assistant_tokens_mask=True)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"])
    settings = dict(request["settings"])
    given = settings.pop("chat_template", None)
    template = Path(given).read_text("utf-8") if given else tokenizer.chat_template
    if isinstance(template, dict):
        template = template["tool_use" if any(r.get("tools") for r in records) else "default"]
    if re.search(r"{%-?\s*generation\b", str(template)) is None:
        raise ValueError(
            "the model's chat template has no {% generation %} blocks, so transformers marks no tokens of "
            "replies; --against_setting chat_template=FILE names one that has, by its full path"
        )
    yield {"versions": {"transformers": transformers.__version__}, "settings": request["settings"]}
    for number, record in enumerate(records):
        try:
            made = tokenizer.apply_chat_template(
                record["messages"],
                tools=record.get("tools"),
                chat_template=template,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **{**settings, **record.get("chat_template_kwargs", {})},
            )
        except Exception as error:
            yield {"index": number, "dropped": f"{type(error).__name__}: {error}"}
            continue
        ids = list(made["input_ids"])[: request["max_length"]]
        mask = made.get("assistant_masks") or [0] * len(ids)
        labels = [token if bit else -100 for token, bit in zip(ids, mask, strict=False)]
        yield {"index": number, "rows": [[ids, labels]]}
