"""`type: sharegpt` of axolotl before 0.5 learned the replies that the imported file learns.

The reference follows `ShareGPTPromptTokenizingStrategy` (prompt_tokenizers.py) and `get_turns`
(monkeypatch/fastchat_conversation_turns.py) of axolotl 0.4.0: each turn is tokenized for itself, and of a
reply's turn the mark without its trailing white space is not learned. Texts of FastChat's conversations.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from family_models import write_family
from fastsft import _C
from fastsft.arguments.imports.draft import Fate
from fastsft.arguments.imports.source import read_source
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.inspect import prepare
from published_templates import write_model

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
RECORDS = [
    [("human", "Hi"), ("gpt", "Ho.")],
    [("system", "Be brief."), ("human", "Ping?"), ("gpt", "Pong."), ("human", "Tick?"), ("gpt", "Tock.")],
]
Turn = tuple[str, str, bool]  # mark, text and end, True for a reply


def vicuna(system: str, turns: list[tuple[str, str]]) -> list[Turn]:
    marks = {"human": ("USER: ", " "), "gpt": ("ASSISTANT: ", "</s>")}
    parts = [(marks[role][0], text + marks[role][1], role == "gpt") for role, text in turns]
    return [("", f"{system or VICUNA} ", False), *parts]


def llama_3(system: str, turns: list[tuple[str, str]]) -> list[Turn]:
    def mark(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    names = {"human": "user", "gpt": "assistant"}
    parts = [(mark(names[role]), f"{text}<|eot_id|>", role == "gpt") for role, text in turns]
    return [*([("", f"{mark('system')}{system}<|eot_id|>", False)] if system else []), *parts]


def chatml(system: str, turns: list[tuple[str, str]]) -> list[Turn]:
    names = {"human": "user", "gpt": "assistant"}
    parts = [(f"<|im_start|>{names[role]}\n", f"{text}<|im_end|>\n", role == "gpt") for role, text in turns]
    return [
        ("", f"<|im_start|>system\n{system or 'You are a helpful assistant.'}<|im_end|>\n", False),
        *parts,
    ]


def replies_there(tokenizer: Any, turns: list[Turn], *, has_end: bool) -> list[list[int]]:
    """The learned ids of each reply. has_end: an end of sequence follows a reply without it."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text).input_ids
        return found[1:] if found[:1] == [tokenizer.bos_token_id] else found

    learned = []
    for mark, text, is_reply in turns:
        if is_reply:
            row = ids(mark + text)
            row += [tokenizer.eos_token_id] if has_end and row[-1] != tokenizer.eos_token_id else []
            learned.append(row[len(ids(mark.rstrip())) :])
    return learned


def replies_here(model: Path, settings: LabelSettings, data: Path) -> list[list[list[int]]]:
    setup = prepare(str(model), settings, 4096, str(data))
    seen = setup.read(str(data), _C.SurveyChoice(count=len(RECORDS), whole=True))[1]
    found = []
    for record in seen.chosen:
        replies: list[list[int]] = []
        was = False
        for token in record.rows[0].tokens:
            if token[3]:
                replies = replies if was else [*replies, []]
                replies[-1].append(token[0])
            was = bool(token[3])
        found.append(replies)
    return found


CASES: dict[str, tuple[str, Callable[[str, list[tuple[str, str]]], list[Turn]], tuple[str, str]]] = {
    # conversation: stand-in, texts, line breaks learned there around each reply
    "vicuna_v1.1": ("llama2_chat", vicuna, ("", "")),
    "llama-3": ("llama-3", llama_3, ("\n\n", "")),
    "chatml": ("qwen2.5", chatml, ("\n", "\n")),
}


@pytest.mark.parametrize("conversation", CASES)
def test_replies(conversation: str, tmp_path: Path) -> None:
    """The line breaks, which the import names, are learned there alone."""
    kind, texts, (lead, rest) = CASES[conversation]
    write = write_family if kind == "llama2_chat" else write_model
    model, data, config = write(tmp_path / "model", kind), tmp_path / "chats.jsonl", tmp_path / "axolotl.yaml"
    lines = [{"conversations": [{"from": a, "value": b} for a, b in record]} for record in RECORDS]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {"path": str(data), "ds_type": "json", "type": "sharegpt", "conversation": conversation}
    config.write_text(yaml.safe_dump({"base_model": str(model), "datasets": [given]}))
    draft = read_source(config).translate(tmp_path)
    settings = LabelSettings(**{name: str(draft.values[name]) for name in ("mask_policy", "template")})
    tokenizer = AutoTokenizer.from_pretrained(model)
    ours = replies_here(Path(model), settings, data)
    for record, replies in zip(RECORDS, ours, strict=True):
        system = next((text for role, text in record if role == "system"), "")
        turns = texts(system, [each for each in record if each[0] != "system"])
        there = replies_there(tokenizer, turns, has_end=conversation != "chatml")
        around = [tokenizer.encode(text, add_special_tokens=False) if text else [] for text in (lead, rest)]
        assert there == [[*around[0], *reply, *around[1]] for reply in replies]
    named = [row.text for row in draft.rows if row.key == "datasets" and row.fate is Fate.LOST]
    assert bool(lead) == ("line breaks around a reply's text were learned" in " ".join(named))
