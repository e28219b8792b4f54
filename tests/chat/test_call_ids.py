"""Ids of calls that a template needs and the data has not: made, the same for a call and its result."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from published_models import write_tokenizer

BODY = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}[R]{{ m.content }} of {{ m.tool_call_id }}[/R]"
    "{% elif m.tool_calls is defined %}[C]{% for c in m.tool_calls %}"
    "CHECK NAME({{ c.function.arguments | tojson }}) {{ c.id }};{% endfor %}</s>"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}"
    "{% endfor %}"
)
NAME = "{{ c.function.name }}"
CHECK = "{% if c.id is not defined or c.id|length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
TEMPLATES = {
    # As Mistral's of v0.3 and Nemo, which take nine characters alone.
    "short": BODY.replace("CHECK", CHECK).replace("NAME", NAME),
    # As Kimi's, which writes the id in place of the name.
    "named": BODY.replace("CHECK", "").replace("NAME", ""),
    "any": BODY.replace("CHECK", "").replace("NAME", NAME),
    # As Qwen's and Llama's, which write none.
    "none": BODY.replace("CHECK", "").replace("NAME", NAME).replace("{{ c.id }}", "").replace(
        " of {{ m.tool_call_id }}", ""
    ),
}  # fmt: skip
CONTROLS = ("<s>", "</s>", "[INST]", "[/INST]", "[R]", "[/R]", "[C]")
FORMS = {"short": r"\w{9}", "any": r"\w{9}", "named": r"functions\.\w+:\d+"}


def called(name: str, city: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {"city": city}}, **more}


def turn(*calls: Any, results: Any = None) -> list[dict[str, Any]]:
    answers = results or [{} for _ in calls]
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": list(calls)},
        *({"role": "tool", "content": f"r{i}", **more} for i, more in enumerate(answers)),
        {"role": "assistant", "content": "Ho"},
    ]


@pytest.fixture(params=TEMPLATES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    path = write_tokenizer(tmp_path / "m", TEMPLATES[request.param], CONTROLS, named)
    return request.param, path


def texts(model: Path, folder: Path, *records: Any) -> tuple[list[str], Any]:
    """The text of each row, and the report."""
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=2048)
    chosen = LabelSettings(mask_policy="spans", template="model")
    using = make_labeller(tokenizer.native, 2048, 0, chosen, tokenizer=tokenizer, self_test=True)
    found = labelled(write_records(folder / "d.json", list(records)), using)
    assert not found.faults
    ids = [found.dataset.ids(i).tolist() for i in range(len(found.dataset))]
    return [tokenizer.native.decode(row) for row in ids], found.report


def ids_in(text: str) -> tuple[list[str], list[str]]:
    """Those of the calls, and of the results."""
    return re.findall(r"\) ([^;]*);", text), re.findall(r"of ([^\[]*?)\[/R\]", text)


def judged(model: Path, messages: list[Any]) -> str:
    theirs = AutoTokenizer.from_pretrained(model)
    return str(theirs.decode(theirs.apply_chat_template(messages)))


@pytest.mark.variants("[any]", "[none]")
def test_made_ids(model: tuple[str, Path], tmp_path: Path) -> None:
    name, directory = model
    messages = [*turn(called("a", "Rome"), called("b", "Oslo")), *turn(called("a", "Rome"))]
    (text,), report = texts(directory, tmp_path, {"messages": messages})
    if name == "none":
        assert "call_ids" not in report.entries and text == judged(directory, messages)
        return
    of_calls, of_results = ids_in(text)
    assert of_calls == of_results and len(set(of_calls)) == 3
    assert all(re.fullmatch(FORMS[name], each) for each in of_calls)
    if name == "named":
        assert of_calls == ["functions.a:0", "functions.b:1", "functions.a:2"]
    given = json.loads(json.dumps(messages))
    left = iter(of_calls)
    for message in given:
        for call in message.get("tool_calls", []):
            call["id"] = next(left)
    for result, each in zip([m for m in given if m["role"] == "tool"], of_results, strict=True):
        result["tool_call_id"] = each
    assert text == judged(directory, given)
    assert report.entries["call_ids"].actions == {"noted": 1}
    assert texts(directory, tmp_path, {"messages": messages})[0] == [text]
    again, other = texts(directory, tmp_path, {"messages": given})
    assert again == [text] and "call_ids" not in other.entries


@pytest.mark.variants("[short]")
def test_forms_of_data(model: tuple[str, Path], tmp_path: Path) -> None:
    """Texts of calls, OpenAI's older field, null and empty ids, and LLaMA-Factory's role."""
    name, directory = model
    plain = turn(called("a", "Rome"))
    (expected,), _ = texts(directory, tmp_path, {"messages": plain})
    empty = turn(called("a", "Rome", id=""), results=[{"tool_call_id": None}])
    as_text = json.loads(json.dumps(plain))
    as_text[1]["tool_calls"] = json.dumps(as_text[1]["tool_calls"])
    older = json.loads(json.dumps(plain))
    older[1]["function_call"] = older[1].pop("tool_calls")[0]["function"]
    factory = [
        {"from": "human", "value": "Hi"},
        {"from": "observation", "value": "r0"},
        {"from": "gpt", "value": "Ho"},
    ]
    factory.insert(1, {"from": "function_call", "value": json.dumps(called("a", "Rome")["function"])})
    records = [{"messages": empty}, {"messages": as_text}, {"messages": older}, {"conversations": factory}]
    for record in records:
        (text,), _ = texts(directory, tmp_path, record)
        without = re.compile(r"\w{9}(?=;|\[/R\])")  # made from the call as it is written
        if name in ("short", "any"):
            of_calls, of_results = ids_in(text)
            assert of_calls == of_results and re.fullmatch(FORMS[name], of_calls[0])
        assert without.sub("", text) == without.sub("", expected)


@pytest.mark.variants("[named]")
def test_ids_that_are_given(model: tuple[str, Path], tmp_path: Path) -> None:
    name, directory = model
    if name == "none":
        return
    openai = "call_0123456789abcdefABCDEF"
    for given in ("abcdefghi", openai):
        both = turn(called("a", "Rome", id=given), results=[{"tool_call_id": given}])
        half = [
            turn(called("a", "Rome", id=given)),
            turn(called("a", "Rome"), results=[{"tool_call_id": given}]),
        ]
        for messages in (both, *half):
            (text,), report = texts(directory, tmp_path, {"messages": messages})
            of_calls, of_results = ids_in(text)
            is_kept = name != "short" or len(given) == 9
            assert of_calls == of_results and (of_calls == [given]) is is_kept
            is_linked = messages is half[0]  # the result got the id of its call
            assert ("call_ids" in report.entries) is (is_linked or not is_kept)
    crossed = turn(
        called("a", "Rome", id="aaaaaaaaa"), called("b", "Oslo"), results=[{}, {"tool_call_id": "aaaaaaaaa"}]
    )
    (text,), _ = texts(directory, tmp_path, {"messages": crossed})
    (first, _), results = ids_in(text)
    assert first == "aaaaaaaaa" and results[1] == first
