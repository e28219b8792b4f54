"""Replies that are calls written as text, as LLaMA-Factory and ms-swift have them, and names of roles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from family_models import TEMPLATES, write_family
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer

LENGTH = 2048
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}}}]  # fmt: skip
CALL = {"name": "weather", "arguments": {"city": "Rome"}}
OTHER = {"name": "weather", "arguments": {"city": "Oslo"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, family in (("qwen2.5", "qwen2"), ("qwen3", "qwen3"), ("llama-3.2", "llama3")):
        write_family(folder / name, family)
        shutil.copyfile(TEMPLATES / f"{name}.jinja", folder / name / "chat_template.jinja")
    return {name: folder / name for name in ("qwen2.5", "qwen3", "llama-3.2")}


def rows(model: Path, folder: Path, record: Any, **settings: Any) -> tuple[list[list[int]], list[str], Any]:
    """Ids and learned texts of the rows of a record, and the report."""
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
    chosen = LabelSettings(**{"mask_policy": "spans", "template": "model", **settings})
    using = make_labeller(tokenizer.native, LENGTH, 0, chosen, tokenizer=tokenizer)
    found = labelled(write_records(folder / "d.json", [record]), using)
    assert not found.faults, str(found.faults[0])
    ids = [found.dataset.ids(i).tolist() for i in range(len(found.dataset))]
    learned = [
        tokenizer.native.decode(row[begin:end])
        for i, row in enumerate(ids)
        for begin, end in found.dataset.learned(i)
    ]
    return ids, learned, found.report


def rendered(model: Path, messages: list[Any], tools: Any = TOOLS) -> list[int]:
    return list(AutoTokenizer.from_pretrained(model).apply_chat_template(messages, tools=tools))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calls(*made: Any, content: str = "", **more: Any) -> dict[str, Any]:
    functions = [{"type": "function", "function": each} for each in made]
    return {"role": "assistant", "content": content, "tool_calls": functions, **more}


RESULT, ANSWER = {"role": "tool", "content": "sunny"}, {"role": "assistant", "content": "Sunny."}


def spelled(form: str, *messages: tuple[str, str]) -> dict[str, Any]:
    names = ("role", "content") if form == "messages" else ("from", "value")
    return {form: [dict(zip(names, each, strict=True)) for each in messages], "tools": json.dumps(TOOLS)}


@pytest.mark.covering
@pytest.mark.parametrize("form", ["messages", "conversations"])
@pytest.mark.parametrize("role", ["function_call", "tool_call"])
@pytest.mark.parametrize("result", ["observation", "tool_response", "ipython", "tool", "function_response"])
def test_names_of_roles(models: dict[str, Path], form: str, role: str, result: str, tmp_path: Path) -> None:
    """The rows are those of the messages that transformers takes."""
    model = models["qwen2.5"]
    record = spelled(
        form, ("user", "Rome?"), (role, json.dumps(CALL)), (result, "sunny"), ("assistant", "Sunny.")
    )
    ids, learned, report = rows(model, tmp_path, record)
    assert ids == [rendered(model, [user("Rome?"), calls(CALL), RESULT, ANSWER])]
    assert [json.dumps(CALL) in learned[0], "Sunny." in learned[1]] == [True, True]
    assert report.num_kept == 1 and not report.entries


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_thoughts_before_a_call(models: dict[str, Path], between: str, tmp_path: Path) -> None:
    """They are the reply's thoughts: the field of Qwen3's template, the text of Qwen 2.5's."""
    text = f"<think>\nhm\n</think>{between}{json.dumps(CALL)}"
    record = spelled("conversations", ("human", "Rome?"), ("function_call", text), ("observation", "sunny"),
                     ("gpt", "Sunny."))  # fmt: skip
    model = models["qwen3"]
    ids, learned, _ = rows(model, tmp_path, record)
    turn = [user("Rome?"), calls(CALL, reasoning_content="hm"), RESULT, ANSWER]
    assert ids == [rendered(model, turn[:2]), rendered(model, turn)]
    assert learned[0].startswith("<think>\nhm\n</think>\n\n<tool_call>") and "Sunny." in learned[1]
    model = models["qwen2.5"]
    ids, learned, _ = rows(model, tmp_path, record)
    assert ids == [rendered(model, [turn[0], calls(CALL, content="<think>\nhm\n</think>"), RESULT, ANSWER])]
    assert learned[0].startswith("<think>\nhm\n</think>\n<tool_call>")


def test_calls_after_one_another_are_one_reply(models: dict[str, Path], tmp_path: Path) -> None:
    """As ms-swift has them, also after the text of the reply."""
    model = models["qwen2.5"]
    record = spelled("messages", ("user", "Rome?"), ("assistant", "I look."),
                     ("tool_call", json.dumps(CALL)), ("tool_call", json.dumps([OTHER])),
                     ("tool_response", "sunny"), ("tool_response", "snow"),
                     ("assistant", "Sunny."))  # fmt: skip
    ids, learned, report = rows(model, tmp_path, record)
    both = calls(CALL, OTHER, content="I look.")
    assert ids == [rendered(model, [user("Rome?"), both, RESULT, {**RESULT, "content": "snow"}, ANSWER])]
    assert len(learned) == 2 and learned[0].startswith("I look.") and not report.entries
    record["messages"][2]["train"] = False
    with pytest.raises(AssertionError, match="part of the reply before it"):
        rows(model, tmp_path, record)
    record["messages"][1]["train"] = record["messages"][3]["train"] = 0
    assert rows(model, tmp_path, record)[1] == learned[1:]


def test_a_text_that_is_no_call_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    for text in ("weather(Rome)", '<functioncall> {"name": "x"}', '{"city": "Rome"}', "<think>hm</think> go"):
        record = spelled(
            "messages", ("user", "Hi"), ("assistant", "Ho"), ("user", "Rome?"), ("tool_call", text)
        )
        report = rows(models["qwen2.5"], tmp_path, record)[2]
        assert "the text of role tool_call is no call; expected JSON" in report.entries["unknown_role"].reason


@pytest.mark.variants("[messages]")
@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_developer_is_system(models: dict[str, Path], form: str, tmp_path: Path) -> None:
    for name in models:
        record = spelled(form, ("developer", "Be kind."), ("user", "Hi"), ("assistant", "Ho"))
        del record["tools"]
        other = spelled(form, ("system", "Be kind."), ("user", "Hi"), ("assistant", "Ho"))
        del other["tools"]
        found = rows(models[name], tmp_path, record)
        assert found[:2] == rows(models[name], tmp_path, other)[:2] and not found[2].entries


def test_results_that_are_no_text(models: dict[str, Path], tmp_path: Path) -> None:
    """Their JSON is the text, and the answer stays."""
    model = models["qwen2.5"]
    for value in ({"temp": 3, "at": None}, [{"temp": 3}], 3, 0, False, True, {}, [1, "a"]):
        turn = [user("Rome?"), calls(CALL), {**RESULT, "content": value}, ANSWER]
        ids, learned, report = rows(model, tmp_path, {"messages": turn, "tools": TOOLS})
        turn[2] = {**RESULT, "content": json.dumps(value)}
        assert ids == [rendered(model, turn)] and "Sunny." in learned[1]
        assert report.entries["result_not_text"].actions == {"noted": 1}
    image = {**RESULT, "content": [{"type": "image_url", "image_url": "x"}]}
    report = rows(model, tmp_path, {"messages": [user("Rome?"), calls(CALL), image, ANSWER], "tools": TOOLS})[
        2
    ]
    assert report.entries["not_text"].count == 1


def test_calls_without_results_and_open_thoughts_are_noted(models: dict[str, Path], tmp_path: Path) -> None:
    model = models["qwen2.5"]
    answered = [user("Rome?"), calls(CALL), RESULT, ANSWER]
    for turn, expected in (
        ([user("Rome?"), calls(CALL), user("Well?"), ANSWER], "calls a tool 1 time, and 0 results follow"),
        ([user("Rome?"), calls(CALL, OTHER), RESULT, ANSWER], "calls a tool 2 times, and 1 result follows"),
        ([user("Rome?"), calls(CALL), RESULT, RESULT, ANSWER], "calls a tool 1 time, and 2 results follow"),
    ):
        found = rows(model, tmp_path, {"messages": turn})[2].entries["call_without_result"]
        assert found.actions == {"noted": 1} and expected in found.reason
    for turn in (answered, answered[:2]):  # a last call has no result yet
        assert "call_without_result" not in rows(model, tmp_path, {"messages": turn})[2].entries
    for text, is_open in (("<think>hm", True), ("<think>a</think>b<think>c", True),
                          ("<think>a</think>b", False),
                          ("a</think>b", False)):  # fmt: skip
        turn = [user("Hi"), {"role": "assistant", "content": text}]
        assert ("unclosed_thoughts" in rows(model, tmp_path, {"messages": turn})[2].entries) is is_open
