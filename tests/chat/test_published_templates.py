"""Templates with their own ways to end replies, write calls and begin thoughts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_formats import labelled, write_records
from fastsft.data.chat.labelling import LabelSettings, describe, describe_labels, make_labeller
from fastsft.data.data_module import make_supervised_data_module
from fastsft.inspection.data_report import note_stop_token
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from published_models import CHATML, MODELS, R1, write_published, write_tokenizer

LENGTH = 2048


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_published(folder / name, name) for name in MODELS}


class Seen:
    """A record as a file of it is labelled."""

    def __init__(self, model: Path, folder: Path, *records: Any, **settings: Any) -> None:
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
        native = find_native_tokenizer(tokenizer)
        assert native is not None
        chosen = LabelSettings(**{"mask_policy": "spans", **settings})
        using = make_labeller(native, LENGTH, 0, chosen, tokenizer=tokenizer, self_test=True)
        seen = labelled(write_records(folder / "d.json", list(records)), using)
        rows = range(len(seen.dataset))
        self.labelling, self.report = describe(using), seen.report
        self.ids = [seen.dataset.ids(i).tolist() for i in rows]
        self.learned = [
            native.decode(self.ids[i][begin:end]) for i in rows for begin, end in seen.dataset.learned(i)
        ]


def rendered(model: Path, messages: list[Any], tools: Any = None, more: str = "") -> list[int]:
    """The ids of transformers, and of a text after them."""
    theirs = AutoTokenizer.from_pretrained(model)
    text = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    ids: list[int] = theirs(text + more, add_special_tokens=False)["input_ids"]
    return ids


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


FUNCTION = {
    "name": "weather", "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "city"}}},
}  # fmt: skip
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rom"}}}
RESULT = {"role": "tool", "content": "sunny", "name": "weather", "tool_call_id": "abcdefghi"}
PLAIN = [user("Hi"), says("Ho"), user("He"), says("<b>Ha")]
CALLING = [user("Hi"), says("", tool_calls=[CALL]), RESULT, says("Sunny.")]
THINKING = [user("Hi"), says("<think>\nhm\n</think>\n\nHo")]


def test_thoughts_in_replies_keep_their_tokens(models: dict[str, Path], tmp_path: Path) -> None:
    """Those of Qwen3 are no control tokens: a text that has them is as safe as any other."""
    seen = Seen(models["qwen3"], tmp_path, {"messages": THINKING})
    assert seen.learned == ["<think>\nhm\n</think>\n\nHo<|im_end|>"]
    assert seen.ids == [rendered(models["qwen3"], THINKING)]
    assert "embedded_special" not in seen.report.entries
    spoiled = [user("Hi"), says("<think>\nhm<|im_end|>\n</think>\n\nHo")]
    left_out = Seen(models["qwen3"], tmp_path, {"messages": THINKING}, {"messages": spoiled})
    assert left_out.report.entries["embedded_special"].count == 1 and left_out.ids == seen.ids


def test_thoughts_in_a_template_that_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    seen = Seen(models["qwen3"], tmp_path, {"messages": THINKING}, template="chatml")
    theirs = AutoTokenizer.from_pretrained(models["qwen3"])
    thought = theirs.convert_tokens_to_ids("<think>")
    assert seen.ids[0].count(thought) == 1
    assert seen.learned == ["<think>\nhm\n</think>\n\nHo<|im_end|>"]


def test_a_prompt_that_goes_on_with_thoughts(
    models: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """R1's prompt ends with <think>, and its template writes replies without: they are learned from before
    it."""
    seen = Seen(models["deepseek-r1"], tmp_path, {"messages": PLAIN})
    assert seen.learned == [f"Ho{R1[3]}", f"<b>Ha{R1[3]}"]
    assert seen.ids == [rendered(models["deepseek-r1"], PLAIN)]
    assert "prompt for a reply ends with '<think>\\n'" in capfd.readouterr().out


def test_replies_that_the_next_turn_ends(
    models: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """GLM's: the model stops with the token of the next role, so the last reply gets it, too."""
    seen = Seen(models["glm-4.5"], tmp_path, {"messages": PLAIN}, {"messages": CALLING, "tools": TOOLS})
    assert seen.labelling["stop_token"] == "<|user|>"
    first = "\n<think></think>\n"
    call = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n</tool_call>"
    assert seen.learned == [
        f"{first}Ho<|user|>", f"{first}<b>Ha<|user|>",
        f"{first}{call}<|observation|>", f"{first}Sunny.<|user|>",
    ]  # fmt: skip
    assert seen.ids == [
        rendered(models["glm-4.5"], PLAIN, more="<|user|>"),
        rendered(models["glm-4.5"], CALLING, TOOLS, more="<|user|>"),
    ]
    assert "<|user|>, with which a user's message begins, does" in capfd.readouterr().out


def test_replies_that_are_not_written_as_they_are(models: dict[str, Path], tmp_path: Path) -> None:
    """R1's template takes thoughts out; GLM's and Qwen3.5's change the white space around them."""
    for name, count in (("deepseek-r1", 1), ("glm-4.5", 0), ("qwen3.5", 0)):
        seen = Seen(models[name], tmp_path, {"messages": THINKING})
        told = seen.report.entries.get("template_rewrites")
        assert (told.count if told else 0) == count
        assert "hm" in seen.learned[0] or count
        assert ("(message 1: the chat template does not write" in seen.report.summary()) == bool(count)


def test_a_call_that_ends_a_row(models: dict[str, Path], tmp_path: Path) -> None:
    record = {"messages": CALLING[:2], "tools": TOOLS}
    seen = Seen(models["glm-4.5"], tmp_path, record)
    assert seen.learned[0].endswith("</tool_call><|observation|>")
    assert seen.ids == [rendered(models["glm-4.5"], CALLING[:2], TOOLS, more="<|observation|>")]


def test_calls_with_an_end_of_their_own(models: dict[str, Path], tmp_path: Path) -> None:
    """gpt-oss: <|call|> ends a call, <|return|> the last reply, so each reply has a row."""
    seen = Seen(models["gpt-oss"], tmp_path, {"messages": CALLING, "tools": TOOLS})
    assert seen.learned == [
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rom"}<|call|>',
        "<|channel|>final<|message|>Sunny.<|return|>",
    ]
    assert seen.ids == [rendered(models["gpt-oss"], CALLING[:end], TOOLS) for end in (2, 4)]


@pytest.mark.variants("[thinking]")
@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_names_of_thoughts(models: dict[str, Path], name: str, tmp_path: Path) -> None:
    """The field that gpt-oss's template reads, under each of the names that data sets have for it."""
    thought = [user("Hi"), {**says("Ho"), name: "Hm."}]
    seen = Seen(models["gpt-oss"], tmp_path, {"messages": thought})
    assert seen.learned == [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Ho<|return|>"
    ]
    assert seen.report.formats[0].unused == []
    assert seen.ids == [rendered(models["gpt-oss"], [user("Hi"), says("Ho", thinking="Hm.")])]
    for nothing in (None, "", [], True):
        others = {other: nothing for other in ("thinking", "reasoning", "reasoning_content") if other != name}
        for both in ({**says("Ho"), name: "Hm.", **others}, {**says("Ho"), **others, name: "Hm."}):
            again = Seen(models["gpt-oss"], tmp_path, {"messages": [user("Hi"), both]})
            assert again.ids == seen.ids, both


def test_two_thoughts_are_told(models: dict[str, Path], tmp_path: Path) -> None:
    both = [user("Hi"), says("Ho", thinking="Hm.", reasoning="Hum.")]
    seen = Seen(models["gpt-oss"], tmp_path, {"messages": both})
    assert "Hm." in seen.learned[0] and seen.report.formats[0].unused == ["a message's second thoughts"]


def test_replies_with_and_without_thoughts(models: dict[str, Path], tmp_path: Path) -> None:
    """Qwen3.5's prompt has an empty block of thoughts; a reply that thinks leaves it after its first tag."""
    fields = [user("Hi"), says("Ho", reasoning_content="hm")]
    seen = Seen(models["qwen3.5"], tmp_path, *({"messages": m} for m in (PLAIN, THINKING, fields)))
    assert seen.labelling["train_turns"] == "each"
    thought = "hm\n</think>\n\nHo<|im_end|>"
    assert seen.learned == ["Ho<|im_end|>", "<b>Ha<|im_end|>", thought, thought]
    assert seen.ids == [rendered(models["qwen3.5"], each) for each in (PLAIN[:2], PLAIN, THINKING, fields)]


@pytest.mark.variants("[a]", "[assistant]", "[<]")
@pytest.mark.parametrize("text", ["a", "s", "A", "<", "assistant", "think", "hm", "Ho"])
def test_texts_that_are_in_their_headers_too(models: dict[str, Path], text: str, tmp_path: Path) -> None:
    """No role's mark is learned, whatever the reply is."""
    thought = [user("Hi"), says(text, reasoning_content="hm")]
    seen = Seen(models["qwen3.5"], tmp_path, {"messages": thought})
    assert seen.learned == [f"hm\n</think>\n\n{text}<|im_end|>"]
    stripped = [user("Hi"), says("<think>hm</think>b"), user("He"), says(text)]
    assert Seen(models["deepseek-r1"], tmp_path, {"messages": stripped}).learned == [
        f"b{R1[3]}",
        text + R1[3],
    ]


OTHER_HEADER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)


def test_a_prompt_with_another_header_is_refused(tmp_path: Path) -> None:
    """A model would be asked after a text that it never saw."""
    model = write_tokenizer(tmp_path / "m", OTHER_HEADER, CHATML, {"eos_token": "<|im_end|>"})
    with pytest.raises(ValueError, match="reply 1 does not follow its prompt"):
        Seen(model, tmp_path, {"messages": PLAIN})


def test_a_call_that_is_a_text_of_a_model_whose_turns_have_no_end(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """What comes next decides: a tool's result ends the reply before it."""
    call = "<tool_call>weather</tool_call>"
    messages = [user("Hi"), says(call), RESULT, says("Sunny.")]
    seen = Seen(models["glm-4.5"], tmp_path, {"messages": messages}, {"messages": PLAIN})
    assert seen.learned[:2] == [
        f"\n<think></think>\n{call}<|observation|>", "\n<think></think>\nSunny.<|user|>",
    ]  # fmt: skip
    assert seen.report.num_excluded == 0 and len(seen.ids) == 2


def test_ends_of_calls_are_saved_as_ends(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelling = Seen(models["glm-4.5"], tmp_path, {"messages": PLAIN}).labelling
    assert labelling["call_stop_token"] == "<|observation|>"
    tokenizer = Tokenizer.from_pretrained(models["glm-4.5"])
    user_id, observation = map(tokenizer.convert_tokens_to_ids, ("<|user|>", "<|observation|>"))
    assert len({user_id, observation, tokenizer.unk_token_id, None}) >= 3
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [user_id]}))
    note_stop_token(SimpleNamespace(source_directory=tmp_path, config={}), tokenizer, labelling)
    assert tokenizer.stop_token_ids == [observation]
    assert "call_stop_token" not in Seen(models["qwen3"], tmp_path, {"messages": PLAIN}).labelling


def test_rows_of_replies_only_where_there_are_thoughts(models: dict[str, Path], tmp_path: Path) -> None:
    """GLM's template takes thoughts out of earlier replies and leaves others as they are."""
    thinking = [*THINKING, user("He"), says("Ha"), user("Ho"), says("<think>\nhum\n</think>\n\nHu")]
    fields = [user("Hi"), says("Ho", reasoning_content="hm"), user("He"), says("Ha")]
    last = [*PLAIN, user("Ho"), says("<think>\nhum\n</think>\n\nHu")]
    untrained = [*THINKING, user("He"), says("Ha", train=False)]
    lists = [PLAIN, thinking, fields, last, untrained]
    seen = Seen(models["glm-4.5"], tmp_path, *({"messages": each} for each in lists))
    assert seen.labelling["train_turns"] == "each_with_thoughts"
    assert "records with thoughts in rows of their own" in describe_labels(seen.labelling)
    rows = [PLAIN, *(thinking[:end] for end in (2, 4, 6)), *(fields[:end] for end in (2, 4)), last, THINKING]
    clean = [[{k: v for k, v in m.items() if k != "train"} for m in row] for row in rows]
    assert seen.ids == [rendered(models["glm-4.5"], row, more="<|user|>") for row in clean]
    empty, first, second = ("\n<think>" + thoughts + "</think>\n" for thoughts in ("", "hm", "hum"))
    assert seen.learned == [f"{text}<|user|>" for text in (
        f"{empty}Ho", f"{empty}<b>Ha", f"{first}Ho", f"{empty}Ha", f"{second}Hu", f"{first}Ho", f"{empty}Ha",
        f"{empty}Ho", f"{empty}<b>Ha", f"{second}Hu", f"{first}Ho")]  # fmt: skip
    assert seen.report.entries["split"].count == 5


@pytest.mark.parametrize("thinks", [False, True])
def test_lazy_preprocess(models: dict[str, Path], thinks: bool, tmp_path: Path) -> None:
    """It has an effect where no record of the data is divided."""
    path = write_records(tmp_path / "d.json", [{"messages": [*(THINKING if thinks else PLAIN[:2]), *PLAIN]}])
    tokenizer = Tokenizer.from_pretrained(models["glm-4.5"], model_max_length=LENGTH)
    given = SimpleNamespace(
        data_path=str(path), eval_data_path=None, lazy_preprocess=True, data_cache="none", mask_policy="spans"
    )
    made = make_supervised_data_module(tokenizer, given)["train_dataset"]
    assert type(made).__name__ == ("SupervisedDataset" if thinks else "LazySupervisedDataset")
    assert len(made) == (3 if thinks else 1)


PLAIN_MARK = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.role == 'assistant' %}</tool_call>{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_plain_mark_is_no_stop_token_where_there_is_a_control_token(tmp_path: Path) -> None:
    """With <|endoftext|> as EOS, as base models name it."""
    model = write_tokenizer(tmp_path / "m", PLAIN_MARK, CHATML, {"eos_token": "<|endoftext|>"})
    seen = Seen(model, tmp_path, {"messages": PLAIN})
    assert seen.labelling["stop_token"] == "<|im_end|>"
    assert seen.learned == ["Ho</tool_call><|im_end|>", "<b>Ha</tool_call><|im_end|>"]


PLAIN_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}</s>{% endif %}"
)


def test_the_end_of_a_conversation_is_no_end_of_a_reply(tmp_path: Path) -> None:
    """ChatML's tokens were added as plain ones, and the base's EOS comes after the last reply alone."""
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    model = write_tokenizer(tmp_path / "m", PLAIN_CHATML, ("<s>", "</s>"), named, CHATML)
    seen = Seen(model, tmp_path, {"messages": PLAIN})
    assert seen.labelling["stop_token"] == "<|im_end|>"
    assert seen.learned == ["Ho<|im_end|>", "<b>Ha<|im_end|>"]


@pytest.mark.parametrize("end", ["", "</s>"])
def test_added_tokens_of_white_space_are_no_stop_tokens(end: str, tmp_path: Path) -> None:
    """Those of GPT-NeoX, Phi and Gemma."""
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n"
        + end
        + ("{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
    )
    named = {"bos_token": "<s>", "eos_token": "<s>"}
    model = write_tokenizer(tmp_path / "m", template, ("<s>", "</s>"), named, ("\n\n", "  "))
    if end:
        assert Seen(model, tmp_path, {"messages": PLAIN}).labelling["stop_token"] == "</s>"
    else:
        with pytest.raises(ValueError, match="holds no special token"):
            Seen(model, tmp_path, {"messages": PLAIN})


BLOCKS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
    "{{ m.content }}{% endgeneration %}{% generation %}<|im_end|>\n"
    "{% if loop.last %}<|endoftext|>{% endif %}{% endgeneration %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_blocks_that_go_beyond_the_stop_token(tmp_path: Path) -> None:
    """As TRL's templates for training do; two that follow each other are one."""
    controls = (*CHATML, "<|endoftext|>")
    model = write_tokenizer(tmp_path / "m", BLOCKS, controls, {"eos_token": "<|endoftext|>"})
    seen = Seen(model, tmp_path, {"messages": PLAIN})
    assert seen.labelling["stop_token"] == "<|im_end|>"
    assert seen.learned == ["Ho<|im_end|>", "<b>Ha<|im_end|>"] and seen.ids == [rendered(model, PLAIN)]


def test_blocks_are_no_sign_of_calls(tmp_path: Path) -> None:
    """The marks around blocks are not what a probe of fields looks for."""
    model = write_tokenizer(tmp_path / "m", BLOCKS, CHATML, {"eos_token": "<|im_end|>"})
    seen = Seen(model, tmp_path, {"messages": CALLING, "tools": TOOLS}, {"messages": PLAIN})
    assert seen.report.entries["tool_call"].count == 1 and len(seen.ids) == 1
    assert "tools" in seen.report.formats[0].unused


def test_a_block_without_a_stop_token(tmp_path: Path) -> None:
    """Of a call whose end is not in it: it would be learned without one."""
    source = BLOCKS.replace(
        "{% generation %}<|im_end|>", "{% generation %}{{ '<|im_end|>' if not m.tool_calls }}"
    )
    source = source.replace("{{ m.content }}{% endg", "{{ m.content }}{{ m.tool_calls }}{% endg")
    model = write_tokenizer(tmp_path / "m", source, CHATML, {"eos_token": "<|im_end|>"})
    seen = Seen(model, tmp_path, {"messages": CALLING}, {"messages": PLAIN})
    assert len(seen.ids) == 1 and seen.report.num_excluded == 1


def test_bos_ends_no_reply(tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ '<s>' if m.role == 'user' }}{{ m.role }}:{{ m.content }}{% endfor %}"
    model = write_tokenizer(
        tmp_path / "m", source, ("<s>",), {"bos_token": "<s>", "eos_token": "<|endoftext|>"}
    )
    with pytest.raises(ValueError, match="holds no special token"):
        Seen(model, tmp_path, {"messages": PLAIN})


TWO_ENDS = (
    "{% for m in messages %}<|turn|>{{ m.role }}:{% if m.role == 'assistant' %}{{ m.content }}<|answered|>"
    "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)


@pytest.mark.parametrize(("eos", "stop"), [("<|end|>", "<|end|>"), ("<|turn|>", "<|answered|>")])
def test_of_two_ends_the_tokenizers_own_is_the_stop_token(eos: str, stop: str, tmp_path: Path) -> None:
    """As with Command R7B: a model that learned the first alone would not stop."""
    model = write_tokenizer(
        tmp_path / "m", TWO_ENDS, ("<|turn|>", "<|answered|>", "<|end|>"), {"eos_token": eos}
    )
    seen = Seen(model, tmp_path, {"messages": PLAIN})
    assert seen.labelling["stop_token"] == stop
    ending = "<|answered|><|end|>" if stop == eos else "<|answered|>"
    assert seen.learned == [f"Ho{ending}", f"<b>Ha{ending}"] and seen.ids == [rendered(model, PLAIN)]


def test_calls_as_llama_factory_has_them(models: dict[str, Path], tmp_path: Path) -> None:
    """A role function_call whose text is the call, and tools that are bare functions, as JSON text."""
    one = {"name": "weather", "arguments": {"city": "Rom"}}
    record = {
        "conversations": [
            {"from": "human", "value": "Hi"}, {"from": "function_call", "value": json.dumps(one)},
            {"from": "observation", "value": "sunny"}, {"from": "gpt", "value": "Sunny."}],
        "tools": json.dumps([FUNCTION]),
    }  # fmt: skip
    model = models["qwen3"]
    seen = Seen(model, tmp_path, record)
    plain = [m if m["role"] != "tool" else {"role": "tool", "content": "sunny"} for m in CALLING]
    assert seen.ids == [rendered(model, plain[:end], TOOLS) for end in (2, 4)]
    assert '{"name": "weather", "arguments": {"city": "Rom"}}' in seen.learned[0]
    record["conversations"][1]["value"] = json.dumps([one, one])  # type: ignore[index]
    assert Seen(model, tmp_path, record).learned[0].count("<tool_call>") == 2
    for value in (one, {"type": "function", "function": one}):
        record["conversations"][1]["value"] = json.dumps(value)  # type: ignore[index]
        assert Seen(model, tmp_path, record, role_map={"function_call": "assistant"}).ids == seen.ids


@pytest.mark.parametrize(
    "text",
    ["weather(Rom)", "{}", '{"city": "Rom"}', '{"name": "weather"', "[1]", "[]", '"a"', '{"name": "w"} x'],
)
def test_a_text_that_is_no_call_has_an_unknown_role(
    models: dict[str, Path], text: str, tmp_path: Path
) -> None:
    record = {"conversations": [
        {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}, {"from": "human", "value": "He"},
        {"from": "function_call", "value": text}, {"from": "observation", "value": "sunny"}]}  # fmt: skip
    seen = Seen(models["qwen3"], tmp_path, record)
    assert seen.report.entries["unknown_role"].count == 1
    assert seen.learned == ["<think>\n\n</think>\n\nHo<|im_end|>"]


def test_no_calls_in_a_template_without_them(models: dict[str, Path], tmp_path: Path) -> None:
    one = '{"name": "w", "arguments": {}}'
    record = {"conversations": [
        {"from": "human", "value": "Hi"}, {"from": "function_call", "value": one},
        {"from": "observation", "value": "sunny"}, {"from": "gpt", "value": "Sunny."},
        {"from": "human", "value": "He"}, {"from": "gpt", "value": "Ha"}]}  # fmt: skip
    seen = Seen(models["qwen3"], tmp_path, record, template="chatml")
    assert seen.learned == [] and seen.report.num_excluded == 1
    del record["conversations"][2:4]  # with a role of its own the text is a reply as others are
    mapped = {"template": "chatml", "role_map": {"function_call": "assistant"}}
    seen = Seen(models["qwen3"], tmp_path, record, **mapped)
    assert seen.learned == [f"{one}<|im_end|>", "Ha<|im_end|>"]
