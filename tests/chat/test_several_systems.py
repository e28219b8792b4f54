"""Several system messages: as the model's own template writes them, or with a reason why not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from family_models import TEMPLATES, write_family
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from published_models import write_tokenizer

FIRST = (
    "{% if messages[0].role == 'system' %}S: {{ messages[0].content }}\n{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% elif loop.index0 and REFUSES %}{{ raise_exception('one system message') }}{% endif %}{% endfor %}"
)
CONTROLS = ("<s>", "</s>", "[INST]", "[/INST]")
ONE, TWO = ({"role": "system", "content": text} for text in ("Be kind.", "Be brief."))
TURN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "one"}]
MORE = [{"role": "user", "content": "He"}, {"role": "assistant", "content": "two"}]
CHATS = {
    "start": [ONE, TWO, *TURN],
    "three": [ONE, TWO, ONE, *TURN, *MORE],
    "middle": [*TURN, TWO, *MORE],
    "both": [ONE, *TURN, TWO, *MORE],
    "two in the middle": [ONE, *TURN, TWO, ONE, *MORE],
    "before a reply": [ONE, TURN[0], TWO, TURN[1], *MORE],
}


def rows(
    model: Path, folder: Path, messages: list[Any], **settings: Any
) -> tuple[list[list[int]], list[str], Any]:
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=512)
    chosen = LabelSettings(**{"mask_policy": "spans", "template": "model", **settings})
    using = make_labeller(tokenizer.native, 512, 0, chosen, tokenizer=tokenizer)
    found = labelled(write_records(folder / "d.json", [{"messages": messages}]), using)
    assert not found.faults
    ids = [found.dataset.ids(i).tolist() for i in range(len(found.dataset))]
    learned = [
        tokenizer.native.decode(ids[i][a:b]) for i in range(len(ids)) for a, b in found.dataset.learned(i)
    ]
    return ids, learned, found.report


def published(folder: Path, name: str, family: str) -> Path:
    write_family(folder / name, family)
    shutil.copyfile(TEMPLATES / f"{name}.jinja", folder / name / "chat_template.jinja")
    return folder / name


@pytest.mark.variants("[three]", "[both]")
@pytest.mark.parametrize("name", CHATS)
def test_as_transformers_renders_them(name: str, tmp_path: Path) -> None:
    for template, family in (("qwen2.5", "qwen2"), ("llama-3.2", "llama3")):
        model = published(tmp_path, template, family)
        for role in ("system", "developer"):
            messages = [{**m, "role": role if m["role"] == "system" else m["role"]} for m in CHATS[name]]
            ids, learned, report = rows(model, tmp_path, messages)
            theirs = AutoTokenizer.from_pretrained(model)
            assert ids == [theirs.apply_chat_template(CHATS[name])], (template, report.summary())
            assert len(learned) == len([m for m in messages if m["role"] == "assistant"])
            assert not report.entries


@pytest.mark.parametrize("refuses", ["true", "false"])
def test_templates_without_a_place_for_them(refuses: str, tmp_path: Path) -> None:
    """The record is left out with the template's words, or learned as a server renders it, with a remark."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    model = write_tokenizer(tmp_path / "m", FIRST.replace("REFUSES", refuses), CONTROLS, named)
    for messages in CHATS.values():
        ids, _, report = rows(model, tmp_path, messages)
        assert "writes no system message at this place" in report.entries["system_ignored"].reason
        if refuses == "true":
            assert not ids and "one system message" in report.entries["template_refuses"].reason
        else:
            assert ids == [AutoTokenizer.from_pretrained(model).apply_chat_template(messages)]


def test_of_turns_that_are_left_out(tmp_path: Path) -> None:
    """They stay, as what comes after them was said to; after the last reply they say nothing."""
    model = published(tmp_path, "qwen2.5", "qwen2")
    theirs = AutoTokenizer.from_pretrained(model)
    empty = {"role": "user", "content": ""}
    ids, _, report = rows(model, tmp_path, [*TURN, TWO, empty, TURN[1], *MORE])
    assert (
        ids == [theirs.apply_chat_template([*TURN, TWO, *MORE])] and report.entries["empty_user"].count == 1
    )
    ids, _, report = rows(model, tmp_path, [ONE, *TURN, TWO])
    assert ids == [theirs.apply_chat_template([ONE, *TURN])]
    assert "ends with the system" in report.entries["ends_with_user"].reason
    ids, learned, _ = rows(model, tmp_path, [ONE, TWO, TURN[1], *MORE])
    assert ids == [theirs.apply_chat_template([ONE, TWO, *MORE])] and len(learned) == 1


@pytest.mark.parametrize("template", ["qwen", "chatml", "model"])
def test_repair_joins_neighbours(template: str, tmp_path: Path) -> None:
    model = published(tmp_path, "qwen2.5", "qwen2")
    joined = {"role": "system", "content": "Be kind.\n\nBe brief."}
    found = rows(model, tmp_path, [ONE, TWO, *TURN], template=template, on_bad_sample="repair")
    assert found[:2] == rows(model, tmp_path, [joined, *TURN], template=template)[:2]
    assert found[2].entries["joined_messages"].count == 1


def test_named_templates_have_one_in_front(tmp_path: Path) -> None:
    model = published(tmp_path, "qwen2.5", "qwen2")
    ids, _, report = rows(model, tmp_path, [*TURN, TWO, *MORE], template="chatml")
    assert ids == rows(model, tmp_path, TURN, template="chatml")[0]
    reason = report.entries["broken_alternation"].reason
    assert "this chat template has one in front of the others" in reason and "--template model" in reason
    ids, _, report = rows(model, tmp_path, CHATS["start"], template="chatml")
    assert not ids and report.entries["broken_alternation"].actions == {"excluded": 1}
