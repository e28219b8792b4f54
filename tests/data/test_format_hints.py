"""Published data that is of no format: the message names its fields and how to make it one of a format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0], model_max_length=128)
SPANS = make_labeller(TOKENIZER.native, 128, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
OASST = {"message_id": "6ab", "parent_id": None, "text": "Can you?", "role": "prompter", "lang": "en",
         "message_tree_id": "6ab"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "record", "hint"),
    [
        ("OpenOrca", {"id": "1", "system_prompt": "s", "question": "q", "response": "r"},
         'if "question" is asked and "response" is the reply, name them "prompt" and "completion", and '
         '"system_prompt" "system"'),
        ("Firefly", {"kind": "x", "input": "q", "target": "r"},
         'if "input" is asked and "target" is the reply, name them "prompt" and "completion"'),
        ("Capybara", {"source": "x", "conversation": [{"input": "q", "output": "r"}] * 2},
         '"conversation" is a list of objects with input, output: write each as two messages, {"role"'),
        ("OpenAssistant", OASST, "one message of a tree; make conversations of the trees, each path from"),
        ("an export", {"data": [{"question": "q", "answer": "r"}]}, "write that list alone into the file"),
        ("SQuAD", {"question": "q", "answers": {"text": ["a"]}}, "its fields are question, answers"),
        ("OpenAI's batch", {"custom_id": "1", "method": "POST", "url": "u", "body": {"messages": [
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}},
         'if the record is "body", write its value alone'),
        ("records by id", {name: {"prompt": "q", "completion": "a"} for name in ("x", "y")},
         "if each of them is a record, write a list of their values"),
        ("opus", {"translation": {"en": "q", "de": "a"}},
         'if one text of "translation" is asked and one is the reply, name them "prompt" and "completion", '
         'and leave "translation" out'),
        ("Gemini", {"contents": [{"role": "user", "parts": [{"text": "q"}]}]},
         'if "contents" has the messages, name it "messages", and write each as {"role": "user", "content"'),
        ("UltraChat", {"meta": "m", "data": ["q", "a"]},
         'if "data" has the turns of a conversation, write them as "messages", in turn {"role": "user"'),
        ("preferences", {"chosen": "a", "rejected": "b"}, "write the chosen reply as the last of"),
        ("ids", {"input_ids": [1, 2], "labels": [1, 2]}, "give the texts that they were made of"),
        ("two texts", {"left": "q", "right": "a"}, "if one of them is asked and one is the reply"),
    ],
)  # fmt: skip
def test_the_way_out(name: str, record: dict[str, Any], hint: str, tmp_path: Path) -> None:
    seen = labelled(write_records(tmp_path / "d.jsonl", [record] * 3), SPANS)
    assert seen.report.num_excluded == 3 and not len(seen.dataset)
    assert hint in seen.report.entries["no_conversations"].reason


def test_texts_in_place_of_messages(tmp_path: Path) -> None:
    record = {"conversations": ["q", "a"], "source": "LIMA"}
    seen = labelled(write_records(tmp_path / "d.jsonl", [record]), SPANS)
    reason = seen.report.entries["bad_message"].reason
    assert reason.endswith("write the texts in turn as content of role user and assistant")


def test_rows_of_trees_are_no_texts(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.jsonl", [OASST, {**OASST, "parent_id": "6ab", "role": "assistant"}])
    assert len(labelled(path, SPANS).dataset) == 0
    assert len(labelled(path, SPANS, "text").dataset) == 2
    plain = {name: OASST[name] for name in ("text", "role", "lang")}
    assert len(labelled(write_records(path, [plain]), SPANS).dataset) == 1


def test_marks_in_texts_are_letters_and_the_report_says_so(tmp_path: Path) -> None:
    marked = ["<s>[INST] q [/INST] a </s>", "plain", "an <unk>", "< s>", "<"]
    seen = labelled(write_records(tmp_path / "d.jsonl", [{"text": text} for text in marked]), SPANS)
    entry = seen.report.entries["embedded_special"]
    assert entry.count == 2 and entry.first == ["record 0", "record 2"]
    assert 'in "text" is learned as letters, not as the token; write texts with marks as' in entry.reason
    bos, eos = TOKENIZER.bos_token_id, TOKENIZER.eos_token_id
    ids = seen.dataset.ids(0).tolist()
    assert ids.count(bos) == 1 and ids.count(eos) == 1
