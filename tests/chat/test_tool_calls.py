"""Calls of tools with a model's own template: as transformers renders them, learned like other replies."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from family_models import TEMPLATES, write_family
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.model_template import ModelTemplate
from fastsft.data.label_report import calls_note
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer

LENGTH = 2048
# Published template: the family with its special tokens, and what ends a reply.
MODELS = {
    "qwen2.5": ("qwen2", "<|im_end|>"),
    "qwen3": ("qwen3", "<|im_end|>"),
    "llama-3.2": ("llama3", "<|eot_id|>"),
}
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, (family, _) in MODELS.items():
        write_family(folder / name, family)
        shutil.copyfile(TEMPLATES / f"{name}.jinja", folder / name / "chat_template.jinja")
    return {name: folder / name for name in MODELS}


class Labelled:
    """Records as a file of them is labelled."""

    def __init__(
        self, records: list[Any] | str, folder: Path, model: Path, source: str | None = None, **settings: Any
    ) -> None:
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
        if source is not None:
            tokenizer.chat_template = source
        self.native = find_native_tokenizer(tokenizer)
        assert self.native is not None
        chosen = LabelSettings(**{"mask_policy": "spans", **settings})
        using = make_labeller(self.native, LENGTH, 0, chosen, tokenizer=tokenizer, self_test=True)
        path = write_records(folder / "d.json", records) if isinstance(records, list) else folder / "d.json"
        if isinstance(records, str):
            path.write_text(records)
        seen = labelled(path, using)
        self.labelling, self.dataset, self.report = describe(using), seen.dataset, seen.report

    def rows(self) -> list[tuple[list[int], list[tuple[int, int]]]]:
        return [(self.dataset.ids(i).tolist(), self.dataset.learned(i)) for i in range(len(self.dataset))]

    def learned(self) -> list[str]:
        """The learned texts of all rows."""
        assert self.native is not None
        return [self.native.decode(ids[begin:end]) for ids, spans in self.rows() for begin, end in spans]

    def reason(self, remark: str) -> str:
        return str(self.report.entries[remark].reason)


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def says(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def gives(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


MISSING = "no such key"
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of é <b>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
]  # fmt: skip
CITY = {"city": "Z\u00fcrich", "days": [1, 2], "at": None}
ONE = [user("Weather?"), says("", tool_calls=[call("weather", CITY)]), gives("sunny", name="weather")]
RECORDS: list[dict[str, Any]] = [
    {"messages": [*ONE, says("It is sunny.")], "tools": TOOLS},
    {"messages": [
        {"role": "system", "content": "Be brief."}, *ONE, says("Sunny."), user("And you?"), says("Fine.")]},
    {"messages": [user("Hi"), says("Ho")], "tools": TOOLS},
    {"messages": [*ONE, says("", tool_calls=[call("weather", {})]), gives(""), says("No idea.")],
     "tools": TOOLS},
]  # fmt: skip


def prefixes(messages: list[Any]) -> Iterator[list[Any]]:
    for end, message in enumerate(messages):
        if message["role"] == "assistant":
            yield messages[: end + 1]


def judged(name: str, model: Path) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Rows by transformers: ids of apply_chat_template; of a reply what follows its prompt is learned."""
    theirs = AutoTokenizer.from_pretrained(model)
    stop = theirs.convert_tokens_to_ids(MODELS[name][1])
    rows = []
    for record in RECORDS:
        tools, spans, each = record.get("tools"), [], []
        for upto in prefixes(record["messages"]):
            ids = theirs.apply_chat_template(upto, tools=tools)
            prompt = theirs.apply_chat_template(upto[:-1], tools=tools, add_generation_prompt=True)
            assert ids[: len(prompt)] == prompt
            spans.append((len(prompt), len(ids) - ids[::-1].index(stop)))
            each.append((ids, spans[-1:]))
        whole = theirs.apply_chat_template(record["messages"], tools=tools)
        rows += each if name == "qwen3" else [(whole, spans)]
    return rows


def as_openai(records: list[Any]) -> list[Any]:
    """Arguments and tools as JSON text, no text where there is only a call."""
    changed: list[Any] = json.loads(json.dumps(records))
    for record in changed:
        if "tools" in record:
            record["tools"] = json.dumps(record["tools"])
        for message in record["messages"]:
            for each in message.get("tool_calls", []):
                each["function"]["arguments"] = json.dumps(each["function"]["arguments"])
                message["content"] = None
    return changed


@pytest.mark.parametrize("form", ["objects", "openai"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_what_transformers_renders(
    models: dict[str, Path], name: str, form: str, tmp_path: Path
) -> None:
    """By default, also of files that hold arguments as text, which vLLM makes objects of, too."""
    records = RECORDS if form == "objects" else as_openai(RECORDS)
    seen = Labelled(records, tmp_path, models[name])
    assert seen.rows() == judged(name, models[name])
    assert seen.report.num_without_labels == 0 and "tool_call" not in seen.report.entries
    assert seen.report.formats[0].unused == [] and calls_note(seen.report) == ""
    expected = {"qwen3": "<think>\n\n</think>\n\n"}.get(name, "")
    assert seen.learned()[0].startswith(
        f'{expected}{{"name": ' if name == "llama-3.2" else f"{expected}<tool_call>"
    )


def test_several_calls_and_a_text_next_to_them(models: dict[str, Path], tmp_path: Path) -> None:
    calls = [call("weather", {"city": "a"}), call("weather", {"city": "b"})]
    messages = [user("?"), says("Let me look.", tool_calls=calls), gives("1"), gives("2"), says("Both.")]
    seen = Labelled([{"messages": messages}], tmp_path, models["qwen2.5"])
    first, second = seen.learned()
    assert first.startswith("Let me look.\n<tool_call>") and first.count("</tool_call>") == 2
    assert second == "Both.<|im_end|>"
    refused = Labelled([{"messages": messages}, RECORDS[2]], tmp_path, models["llama-3.2"])
    assert refused.report.num_excluded == 1 and "single tool-calls" in refused.reason("template_refuses")


def test_a_text_that_is_not_written_next_to_a_call(models: dict[str, Path], tmp_path: Path) -> None:
    messages = [user("?"), says("Let me look.", tool_calls=[call("weather", CITY)]), gives("1"), says("One.")]
    seen = Labelled([{"messages": messages}, RECORDS[0]], tmp_path, models["llama-3.2"])
    assert "Let me look." not in "".join(seen.learned())
    told = seen.report.entries["template_rewrites"]
    assert (
        told.count == 1 and told.reason == "message 1: the chat template does not write this reply as it is"
    )


def test_the_call_of_older_files(models: dict[str, Path], tmp_path: Path) -> None:
    """OpenAI's function_call, one a message."""
    one = {"name": "weather", "arguments": json.dumps(CITY)}
    old = [
        user("Weather?"),
        says(None, function_call=one),
        {**ONE[2], "role": "function"},
        says("It is sunny."),
    ]
    seen = Labelled([{"messages": old, "tools": TOOLS}], tmp_path, models["qwen2.5"])
    assert seen.rows() == judged("qwen2.5", models["qwen2.5"])[:1]


def test_a_call_whose_result_ends_the_record(models: dict[str, Path], tmp_path: Path) -> None:
    """The call is learned; the result teaches nothing and is left out."""
    seen = Labelled([{"messages": ONE, "tools": TOOLS}], tmp_path, models["qwen2.5"])
    assert len(seen.learned()) == 1 and "<tool_call>" in seen.learned()[0]
    assert seen.reason("ends_with_user") == "message 2: ends with the tool"


def test_thoughts_in_a_field(models: dict[str, Path], tmp_path: Path) -> None:
    """`reasoning_content`, which Qwen3's template writes and Qwen2.5's does not."""
    thought = [{"messages": [user("Hi"), says("Ho", reasoning_content="Hm, a greeting.")]}]
    seen = Labelled(thought, tmp_path, models["qwen3"])
    assert seen.learned() == ["<think>\nHm, a greeting.\n</think>\n\nHo<|im_end|>"]
    assert seen.report.formats[0].unused == []
    other = Labelled(thought, tmp_path, models["qwen2.5"])
    assert other.learned() == ["Ho<|im_end|>"]
    assert other.report.formats[0].unused == ["a message's reasoning_content"]


def test_a_template_that_writes_no_calls(models: dict[str, Path], tmp_path: Path) -> None:
    """A call alone would be learned as an empty reply: the turn is left out and told, as before."""
    seen = Labelled(RECORDS[:2], tmp_path, models["qwen2.5"], source=PLAIN + PROMPT)
    assert seen.learned() == ["Fine.<|im_end|>"] and seen.report.num_excluded == 1
    assert "the template writes no calls" in seen.reason("tool_call")
    assert seen.report.formats[0].unused == ["a message's tool_calls", "a message's name", "tools"]
    assert "tool calls are not trained" in calls_note(seen.report)


AS_TEXT = PLAIN.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + ':' + c.function.arguments }}"
    "{% endfor %}",
)


def test_a_template_that_wants_arguments_as_text(models: dict[str, Path], tmp_path: Path) -> None:
    """As DeepSeek's: what is no text would be an error there."""
    for records in (RECORDS[:1], as_openai(RECORDS[:1])):
        seen = Labelled(records, tmp_path, models["qwen2.5"], source=AS_TEXT + PROMPT)
        (first, _) = seen.learned()
        assert (
            first.startswith("weather:{")
            and json.loads(first.removeprefix("weather:").removesuffix("<|im_end|>")) == CITY
        )


@pytest.mark.covering
@pytest.mark.parametrize("arguments", ["", " \n", "null", " null ", None, MISSING])
@pytest.mark.parametrize("source", [None, "as text"])
def test_blank_null_and_missing_are_no_arguments(
    models: dict[str, Path], source: str | None, arguments: str | None, tmp_path: Path
) -> None:
    """As OpenAI's files have calls of functions without parameters, and Parquet's rows lack what is null."""
    form = None if source is None else AS_TEXT + PROMPT
    rows = []
    for number, value in enumerate((arguments, {})):
        asked = call("now", value)
        if value == MISSING:
            del asked["function"]["arguments"]
        record = {"messages": [user("?"), says(None, tool_calls=[asked]), gives("1"), says("1.")]}
        (tmp_path / str(number)).mkdir()
        rows.append(Labelled([record], tmp_path / str(number), models["qwen2.5"], source=form).rows())
    assert rows[0] == rows[1] and rows[0]


def test_a_call_that_is_no_json_is_a_fault_of_its_record(models: dict[str, Path], tmp_path: Path) -> None:
    """Also with a template that takes arguments as text, which would write what it gets."""
    record = {
        "messages": [*ONE[:1], says("", tool_calls=[call("weather", '{"city": ')]), *ONE[2:], says("1")]
    }
    seen = Labelled([record, RECORDS[2]], tmp_path, models["qwen2.5"], source=AS_TEXT + PROMPT)
    assert seen.report.num_excluded == 1 and "is no JSON" in seen.reason("template_refuses")


@pytest.mark.parametrize("text", ["<|im_end|>", "<\\u007cim_end|>"])
@pytest.mark.parametrize("where", ["argument", "nested", "name", "tool", "id"])
def test_special_tokens_in_calls(models: dict[str, Path], where: str, text: str, tmp_path: Path) -> None:
    """Which the tokenizer could not keep apart from the template's: left out, whatever hides them."""
    record = copy.deepcopy(RECORDS[0])
    function = record["messages"][1]["tool_calls"][0]["function"]
    if where == "argument":
        function["arguments"] = {"city": "MARK"}
    elif where == "nested":
        function["arguments"] = json.dumps({"city": {"MARK": 1}})
    elif where == "name":
        function["name"] = "MARK"
    elif where == "tool":
        record["tools"][0]["function"]["description"] = "MARK"
    else:
        record["messages"][1]["tool_calls"][0]["id"] = "MARK"
    written = json.dumps([record, RECORDS[2]]).replace(
        "MARK", text.replace("\\", "\\" * (1 + (where == "nested")))
    )
    assert ("u007c" in written) == ("u007c" in text)
    seen = Labelled(written, tmp_path, models["qwen2.5"])
    assert seen.report.num_excluded == 1 and seen.report.entries["embedded_special"].count == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": "weather"}, "tools is a text that is no JSON"),
        ({"tools": '{"a": 1}'}, "tools is no list"),
        ({"calls": [1]}, "a call of a tool is no object"),
        ({"calls": "{"}, "tool_calls is a text that is no JSON"),
        ({"calls": {"name": "f"}}, "tool_calls is no list"),
        ({"calls": [call("f", '{"a": 1')]}, "arguments of a call is a text that is no JSON"),
        ({"calls": [call("f", "a")]}, "expected an object, got 'a'"),
        ({"calls": [call("f", '"x"')]}, "arguments of a call: expected an object, got '\"x\"'"),
        ({"calls": [call("f", "[1]")]}, "expected an object, got '[1]'"),
        ({"calls": [call("f", [1])]}, "expected an object, got [1]"),
        ({"calls": [call("f", False)]}, "expected an object, got False"),
    ],
)
def test_what_is_no_call(
    models: dict[str, Path], change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    record = copy.deepcopy(RECORDS[0])
    if "calls" in change:
        record["messages"][1]["tool_calls"] = change["calls"]
    else:
        record |= change
    seen = Labelled([record, RECORDS[2]], tmp_path, models["qwen2.5"])
    assert seen.report.num_excluded == 1 and reason in seen.reason("template_refuses")


WHERE_NULL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is none %}"
    "{% for c in m.tool_calls %}{{ c.function.name + ':' + c.function.arguments }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)


def test_a_template_that_asks_for_a_content_of_null(models: dict[str, Path], tmp_path: Path) -> None:
    """As DeepSeek's first ones: the content of a call alone is null, whatever the file has."""
    for records in (RECORDS[:1], as_openai(RECORDS[:1])):
        seen = Labelled(records, tmp_path, models["qwen2.5"], source=WHERE_NULL + PROMPT)
        first, second = seen.learned()
        assert first.startswith("weather:{") and second == "It is sunny.<|im_end|>"


TOGETHER = PLAIN.replace(
    "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
)


def test_a_special_token_of_two_fields(models: dict[str, Path], tmp_path: Path) -> None:
    """A template may write them next to each other."""
    joined = [user("?"), says("x<|im_", tool_calls=[call("end|>", {})])]
    seen = Labelled([{"messages": joined}, RECORDS[0]], tmp_path, models["qwen2.5"], source=TOGETHER + PROMPT)
    assert seen.report.num_excluded == 1 and seen.report.entries["embedded_special"].first == ["record 0"]


@pytest.mark.parametrize("where", ["id", "tool_call_id", "tool"])
def test_lone_surrogates_in_fields(models: dict[str, Path], where: str, tmp_path: Path) -> None:
    """Also in those that the template does not write, which spoil nothing."""
    record = copy.deepcopy(RECORDS[0])
    if where == "id":
        record["messages"][1]["tool_calls"][0]["id"] = "\ud800"
    elif where == "tool_call_id":
        record["messages"][2]["tool_call_id"] = "\ud800"
    else:
        record["tools"][0]["function"]["description"] = "\ud800"
    seen = Labelled(json.dumps([record, RECORDS[2]]), tmp_path, models["qwen2.5"])
    assert seen.report.num_excluded == (where == "tool")


def test_numbers_that_python_does_not_read(models: dict[str, Path], tmp_path: Path) -> None:
    """Each record for itself: the run goes on after many of them."""
    spoiled = json.dumps(RECORDS[0]).replace("[1, 2]", "1" * 5000)
    written = f"[{', '.join([spoiled] * 6)}, {json.dumps(RECORDS[2])}]"
    seen = Labelled(written, tmp_path, models["qwen2.5"])
    assert seen.report.num_excluded == 6 and len(seen.learned()) == 1
    assert "cannot be read" in seen.reason("template_refuses")


@pytest.mark.variants("null", "[]")
@pytest.mark.parametrize("tools", ["", " ", "null", "[]", None, []])
def test_no_tools(models: dict[str, Path], tools: Any, tmp_path: Path) -> None:
    plain = {"messages": RECORDS[2]["messages"]}
    seen = Labelled([{**plain, "tools": tools}], tmp_path, models["qwen2.5"])
    assert seen.rows() == Labelled([plain], tmp_path, models["qwen2.5"]).rows()


@pytest.mark.parametrize("calls", ["", "[]", " null ", None, []])
def test_no_calls(models: dict[str, Path], calls: Any, tmp_path: Path) -> None:
    """An empty reply is none, whatever stands for no call."""
    messages = [user("?"), says("", tool_calls=calls), user("Hi"), says("Ho", tool_calls=calls)]
    seen = Labelled([{"messages": messages}], tmp_path, models["qwen2.5"])
    assert seen.learned() == ["Ho<|im_end|>"] and seen.report.entries["empty_middle_reply"].count == 1


def test_a_call_without_a_content(models: dict[str, Path], tmp_path: Path) -> None:
    record = copy.deepcopy(RECORDS[0])
    del record["messages"][1]["content"]
    seen = Labelled([record], tmp_path, models["qwen2.5"])
    assert seen.rows() == judged("qwen2.5", models["qwen2.5"])[:1]


def test_fields_that_are_not_taken_are_named(models: dict[str, Path], tmp_path: Path) -> None:
    messages = [user("Hi"), says("Ho", reasoning_content=["x"]), gives("1", tool_call_id=5), says("He")]
    seen = Labelled([{"messages": messages, "tools": {"name": "f"}}], tmp_path, models["qwen3"])
    assert seen.report.formats[0].unused == [
        "a message's reasoning_content that is no text",
        "a message's tool_call_id that is no text",
        "tools that are no list",
    ]


def test_a_template_that_writes_objects_as_python_does(models: dict[str, Path], tmp_path: Path) -> None:
    """Objects would be 'x': None; the text of the file is what such templates are written for."""
    seen = Labelled(RECORDS[:1], tmp_path, models["qwen2.5"], source=AS_TEXT.replace(" + ", " ~ ") + PROMPT)
    arguments = seen.learned()[0].removeprefix("weather:").removesuffix("<|im_end|>")
    assert json.loads(arguments) == CITY


def test_calls_outside_of_generation_blocks(models: dict[str, Path], tmp_path: Path) -> None:
    """Nobody knows what of them is learned: such records are left out, the others trained."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}<|im_end|>\n"
        "{% elif m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    seen = Labelled([RECORDS[0], RECORDS[2]], tmp_path, models["qwen2.5"], source=source)
    assert seen.report.num_excluded == 1 and "0 generation blocks for 1 replies" in seen.reason(
        "template_refuses"
    )
    assert seen.learned() == ["Ho<|im_end|>"]


def test_a_probe_that_fails_is_told(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And takes no other one with it: replies are rewritten as the template does it."""
    own = (TEMPLATES / "qwen3.jinja").read_text()
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    slow = "{% if tools %}" + endless + "{% endif %}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastsft.data.chat.model_template.SECONDS", 0.5)
        defaults = {"seconds": 0.5, "day": None, "for_tools": False}
        patch.setattr(ModelTemplate.__init__, "__kwdefaults__", defaults)
        seen = Labelled(RECORDS[1:2], tmp_path, models["qwen3"], source=slow + own)
    assert len(seen.learned()) == 3
    assert (
        "chat template: no probe of tools: the chat template takes more than 0.5 s" in capsys.readouterr().out
    )


def test_arguments_that_python_does_not_read(models: dict[str, Path], tmp_path: Path) -> None:
    for arguments in ("Z\u00fcrich", "[" * 100_000):
        record = {"messages": [user("?"), says("", tool_calls=[call("weather", arguments)])]}
        seen = Labelled([record, RECORDS[2]], tmp_path, models["qwen2.5"])
        assert seen.report.num_excluded == 1 and "is no JSON" in seen.reason("template_refuses")
