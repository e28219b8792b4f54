"""Replies and thoughts that flags leave out of what is learned, against transformers' texts."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_formats import labelled, write_records
from fastsft import _C
from fastsft.arguments.parsing.foreign_flags import about_foreign, about_value
from fastsft.data.chat.labelling import LabelSettings, describe, describe_labels, make_labeller
from fastsft.data.chat.mask_policy import resolve_policy
from fastsft.data.chat.rendering.main import Programs
from fastsft.data.chat.rendering.sandbox import Sandbox
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import GOLDEN, MODES, human_gpt
from published_models import write_published
from reply_choices import CHOICES, replies_of
from template_conversations import CONVERSATIONS
from template_table import Judge, read_table

# One text, rows of one reply, rows where there are thoughts, generation blocks.
TEMPLATES = ("qwen2.5", "qwen3", "glm-4.6", "lfm2.5", "llama-3.1", "kimi-k2-thinking-ids", "gpt-oss")
NATIVE = _C.load_tokenizer(str(GOLDEN / "tokenizers" / MODES[0]))[0]


@pytest.mark.covering
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("choice", CHOICES)
def test_the_chosen_replies_are_learned(choice: str, name: str, tmp_path: Path) -> None:
    """Each with the ids before it and its own, as transformers renders them."""
    choose, settings = CHOICES[choice]
    judge, outcomes, compared = Judge(tmp_path, name, **settings), read_table()[name], 0
    for kind, (messages, tools) in CONVERSATIONS.items():
        if outcomes[kind] not in ("equal", "leaves"):
            continue
        given = copy.deepcopy(messages)
        chosen = choose(given)
        expected = judge.reference.replies(messages, tools)
        kept = [expected[replies_of(messages).index(i)] for i in chosen]
        rows, report = judge.rows(given, tools)
        assert [list(ids) for _, ids in rows] == [list(reply.learned) for reply in kept], kind
        assert [list(ids) for ids, _ in rows] == [list(reply.context) for reply in kept], kind
        assert bool(kept) or report.entries["not_trained"].count == 1
        compared += len(kept)
    assert compared > 20


@pytest.mark.parametrize(
    ("name", "learn"),
    [
        *(("qwen3", "none"), ("qwen3", "filled"), ("glm-4.6", "none"), ("glm-4.6", "filled")),
        *(("lfm2.5", "none"), ("qwq", "none"), ("minimax-m2", "none")),
    ],
)
def test_thoughts_are_left_out(name: str, learn: str, tmp_path: Path) -> None:
    """Up to the reply's text; the ids stay, and a prompt that begins the thoughts, too."""
    judge, outcomes, seen = Judge(tmp_path, name, learn_thoughts=learn), read_table()[name], set()
    for kind, (messages, tools) in CONVERSATIONS.items():
        if outcomes[kind] not in ("equal", "leaves"):
            continue
        for (context, learned), reply in zip(
            judge.rows(messages, tools)[0], judge.reference.replies(messages, tools), strict=True
        ):
            whole = judge.native.decode(list(reply.learned))
            opened = judge.native.decode(list(reply.context)).rstrip().endswith("<think>")
            begin = re.match(r"\s*" if opened else r"\s*<think>", whole)
            thoughts = re.match(rf"{begin[0]}(.*?)</think>\s*", whole, re.DOTALL) if begin else None
            leaves = thoughts is not None and (learn == "none" or not thoughts[1].strip())
            assert [*context, *learned] == [*reply.context, *reply.learned], kind
            text = judge.native.decode(list(learned))
            # White space before the text may be in its first token.
            assert (text.lstrip() if leaves else text) == (whole[thoughts.end() :] if leaves else whole), kind
            seen.add((thoughts is not None, leaves))
    assert (True, True) in seen


@pytest.mark.parametrize("boundary", ["merge", "split"])
def test_the_end_of_thoughts_is_no_end_of_a_prompt(boundary: str, tmp_path: Path) -> None:
    """The model generates what comes after them: " the" stays a token, and nothing is said about it."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>a</think> the"}]
    rows = {
        learn: Judge(tmp_path / learn, "qwen2.5", learn_thoughts=learn, boundary_tokens=boundary).rows(
            copy.deepcopy(messages), None
        )
        for learn in ("all", "none")
    }
    ((context, learned),), report = rows["none"]
    ((prompt, reply),), _ = rows["all"]
    assert [*context, *learned] == [*prompt, *reply] and len(learned) == 2  # " the" and the stop token
    assert not report.entries


def test_thoughts_without_tags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--learn_thoughts none: the chat template writes thoughts without"):
        Judge(tmp_path, "gpt-oss", learn_thoughts="none")


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"learn": "last"}, "--learn last"),
        ({"learn": "marked"}, "--learn marked"),
        ({"learn_tool_calls": False}, "--learn_tool_calls False"),
        ({"learn_thoughts": "none"}, "--learn_thoughts none"),
    ],
)
def test_the_flags_need_spans_and_choose_them(settings: dict[str, Any], flag: str) -> None:
    settings = {"template": "vicuna_v1.1", **settings}
    with pytest.raises(ValueError, match=f"{flag} needs --mask_policy spans"):
        make_labeller(NATIVE, 512, 0, LabelSettings(mask_policy="fastchat", **settings))
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODES[0])
    resolved = resolve_policy(LabelSettings(mask_policy="auto", **settings), tokenizer)
    assert resolved.mask_policy == "spans" and flag in resolved.why
    told = describe(make_labeller(NATIVE, 512, 0, resolved, tokenizer=tokenizer))
    assert flag in describe_labels(told)


def test_two_flags_that_choose_other_replies_are_refused() -> None:
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1", train_turns="last", learn="marked")
    with pytest.raises(ValueError, match="--train_turns last and --learn marked choose other replies"):
        make_labeller(NATIVE, 512, 0, settings)
    with pytest.raises(ValueError, match=r'--learn: expected one of .*, got "first"'):
        make_labeller(NATIVE, 512, 0, replace(settings, train_turns="all", learn="first"))


def test_a_records_mark_marks_its_replies() -> None:
    marked = LabelSettings(mask_policy="spans", template="vicuna_v1.1", learn="marked")
    labeller = make_labeller(NATIVE, 512, 0, marked, self_test=True)

    def learned(record: dict[str, Any]) -> str:
        seen = _C.explain_record(json.dumps(record), labeller)
        return b"".join(seen.text_bytes[b:e] for _, b, e, is_learned in seen.tokens if is_learned).decode()

    turns = human_gpt("Hi", "one", "He", "two")
    assert "one" in learned({"conversations": turns, "train": True})
    turns[1]["train"] = False
    text = learned({"conversations": turns, "train": True})
    assert "two" in text and "one" not in text
    seen = _C.explain_record(json.dumps({"conversations": human_gpt("Hi", "one")}), labeller)
    assert seen.outcome == "excluded" and "--learn marked" in seen.findings[0].reason


def test_a_mark_of_half_a_reply_is_refused(tmp_path: Path) -> None:
    """A call that is joined to the text before it is part of the reply: both are marked, or neither is."""
    judge = Judge(tmp_path, "qwen2.5", learn="marked")
    call = {"role": "tool_call", "content": json.dumps({"name": "f", "arguments": {}})}
    text, rest = {"role": "assistant", "content": "one"}, [{"role": "tool_response", "content": "r"}]
    for marked_text, marked_call in ((True, False), (False, True)):
        given = [
            {"role": "user", "content": "Hi"},
            {**text, **({"train": True} if marked_text else {})},
            {**call, **({"train": True} if marked_call else {})},
            *rest,
            {"role": "assistant", "content": "two"},
        ]
        seen = _C.explain_record(json.dumps({"messages": given}), judge.labeller, data_format="auto")
        assert "of which the other part has no such mark; mark both alike" in str(seen.faults[0])
    given[1]["train"] = True
    ((_, learned),), _ = judge.rows(given, None)
    assert judge.native.decode(list(learned)).startswith("one\n<tool_call>")


def test_replies_that_are_joined_say_that_neither_is_learned() -> None:
    settings = LabelSettings(
        mask_policy="spans", template="vicuna_v1.1", learn="marked", on_bad_sample="repair"
    )
    labeller = make_labeller(NATIVE, 512, 0, settings)
    turns = human_gpt("Hi", "one")
    turns[1]["train"] = True
    record = {"conversations": [*turns, {"from": "gpt", "value": "two"}, *human_gpt("He", "so")]}
    record["conversations"][-1]["train"] = True
    seen = _C.explain_record(json.dumps(record), labeller)
    assert "one of the two is not to be learned, so that neither is" in seen.findings[0].reason
    text = _C.explain_record(json.dumps({"text": "plain"}), labeller, data_format="auto")
    assert text.outcome == "excluded"


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("qwen3"), "qwen3")


class Rows:
    """A file, or one of the records in a folder, as it is labelled with the template of a model."""

    def __init__(self, model: Path, path: Path, *records: Any) -> None:
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=2048)
        native = find_native_tokenizer(tokenizer)
        assert native is not None
        settings = LabelSettings(mask_policy="spans", template="model")
        labeller = make_labeller(native, 2048, 0, settings, tokenizer=tokenizer, self_test=True)
        seen = labelled(write_records(path / "d.json", list(records)) if records else path, labeller)
        self.report = seen.report
        self.ids = [seen.dataset.ids(i).tolist() for i in range(len(seen.dataset))]
        self.text = native.decode(self.ids[0])
        self.learned = [
            native.decode(self.ids[i][begin:end])
            for i in range(len(self.ids))
            for begin, end in seen.dataset.learned(i)
        ]


ASKED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


@pytest.mark.parametrize(
    "given",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": '{"enable_thinking": false}'},
        {"chat_template_kwargs": {"enable_thinking": True, "other": None}, "enable_thinking": False},
    ],
)
def test_a_records_variables_reach_its_template(given: Any, qwen3: Path, tmp_path: Path) -> None:
    """Qwen3's prompt without thinking has the empty block, which is then not learned."""
    rows = Rows(
        qwen3, tmp_path, {"messages": ASKED, **given}, {"messages": ASKED}, {"messages": ASKED, **given}
    )
    assert rows.learned == ["Ho<|im_end|>", "<think>\n\n</think>\n\nHo<|im_end|>", "Ho<|im_end|>"]
    assert rows.ids[0] == rows.ids[1] == rows.ids[2]
    assert not rows.report.formats[0].unused


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"enable_thinking": "no"}, 'enable_thinking: expected true or false, got "no"'),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, 'expected true or false, got "false"'),
        ({"chat_template_kwargs": [1]}, r"chat_template_kwargs: expected an object, got \[1\]"),
        ({"chat_template_kwargs": "x"}, 'chat_template_kwargs: expected an object, got "x"'),
        ({"chat_template_kwargs": "[" * 100_000}, r'chat_template_kwargs: expected an object, got "\['),
        ({"chat_template_kwargs": {"messages": []}}, "messages.*which training gives it"),
    ],
)
def test_variables_that_are_none(given: Any, reason: str, qwen3: Path, tmp_path: Path) -> None:
    rows = Rows(qwen3, tmp_path, {"messages": ASKED, **given}, {"messages": ASKED})
    assert len(rows.ids) == 1
    assert re.search(reason, rows.report.summary())


@pytest.mark.parametrize("given", ["", " ", "null", None])
def test_blank_variables_are_none(given: Any, qwen3: Path, tmp_path: Path) -> None:
    """Columns of tables have a blank text where a record has no value."""
    rows = Rows(qwen3, tmp_path, {"messages": ASKED, "chat_template_kwargs": given}, {"messages": ASKED})
    assert rows.learned == ["<think>\n\n</think>\n\nHo<|im_end|>"] * 2


def test_many_sets_of_variables_share_the_compiled_template(
    qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own values, also when a set comes back after others."""
    source = "{{ note }}" + (qwen3 / "chat_template.jinja").read_text("utf-8")
    compiled = []
    compile_once = Sandbox.from_string
    monkeypatch.setattr(Sandbox, "from_string", lambda *given: compiled.append(1) or compile_once(*given))
    programs = Programs({"source": source, "tokens": {}, "date": "2026-01-01", "adds_bos": False, "ends": ()})
    chat = (None, [("user", "Hi", False, ""), ("assistant", "Ho", True, "")], "")
    for i in (*range(40), 0):
        program = programs.of(json.dumps({"chat_template_kwargs": {"note": f"Note {i}."}}))
        text = "".join(piece for piece, *_ in program.render(*chat)["pieces"])
        assert text.startswith(f"Note {i}.<|im_start|>user\nHi")
    plain = "".join(piece for piece, *_ in programs.of("").render(*chat)["pieces"])
    assert plain.startswith("<|im_start|>user\nHi") and len(compiled) == 1


def test_a_variables_special_token_is_data(tmp_path: Path) -> None:
    """The record is left out, as with such a text in a tool: it cannot be told from the template's."""
    model = write_published(tmp_path / "m", "qwen3")
    source = (model / "chat_template.jinja").read_text("utf-8")
    (model / "chat_template.jinja").write_text("{{ note }}" + source, "utf-8")
    plain, spoiled = ({"chat_template_kwargs": {"note": note}} for note in ("N. ", "<|im_end|>"))
    rows = Rows(model, tmp_path, {"messages": ASKED, **plain}, {"messages": ASKED, **spoiled})
    assert len(rows.ids) == 1 and rows.report.entries["embedded_special"].count == 1


def test_a_named_template_says_that_it_reads_no_variables(tmp_path: Path) -> None:
    labeller = make_labeller(NATIVE, 512, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
    records = [{"conversations": human_gpt("Hi", "one"), "enable_thinking": False}]
    seen = labelled(write_records(tmp_path / "d.json", records), labeller)
    assert seen.report.formats[0].unused == ["enable_thinking"]


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"tone": "kind", "enable_thinking": False, "none": None}, ["chat_template_kwargs.tone"]),
        ('{"tone": "kind", "budget": 3}', ["chat_template_kwargs.tone", "chat_template_kwargs.budget"]),
        ({"enable_thinking": False}, []),
    ],
)
def test_variables_that_a_template_does_not_mention(
    given: Any, unused: list[str], qwen3: Path, tmp_path: Path
) -> None:
    """Each is said by its name, and labels are those without it."""
    rows = Rows(qwen3, tmp_path, {"messages": ASKED, "chat_template_kwargs": given})
    assert rows.report.formats[0].unused == unused
    assert rows.ids == Rows(qwen3, tmp_path, {"messages": ASKED}).ids


def test_a_named_template_says_so_of_all_variables_at_once(tmp_path: Path) -> None:
    labeller = make_labeller(NATIVE, 512, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
    records = [{"conversations": human_gpt("Hi", "one"), "chat_template_kwargs": {"tone": "kind"}}]
    seen = labelled(write_records(tmp_path / "d.json", records), labeller)
    assert seen.report.formats[0].unused == ["chat_template_kwargs"]


@pytest.mark.parametrize("learn", ["last", "after_last_user"])
def test_what_counts_from_the_end_is_refused_with_pieces(learn: str) -> None:
    """Only the last piece of a conversation would have something to learn."""
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1", learn=learn, overlong="split")
    with pytest.raises(ValueError, match=f"--learn {learn} and --overlong split: only the last piece"):
        make_labeller(NATIVE, 512, 0, settings)
    make_labeller(NATIVE, 512, 0, replace(settings, learn="marked"))


def test_columns_that_templates_read(qwen3: Path, tmp_path: Path) -> None:
    """Tools as a list of structs or as JSON text, and variables: as records of JSON have them."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    function = {"name": "weather", "description": "The weather."}
    tools = [{"type": "function", "function": function}]
    record = {"messages": ASKED, "tools": tools, "enable_thinking": False}
    expected = Rows(qwen3, tmp_path, record)
    assert "weather" in expected.text
    for given in (tools, json.dumps(tools)):
        parquet.write_table(arrow.Table.from_pylist([{**record, "tools": given}]), tmp_path / "d.parquet")
        assert Rows(qwen3, tmp_path / "d.parquet").ids == expected.ids


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("enable_thinking", "False", '"enable_thinking" and "chat_template_kwargs" in a record'),
        ("enable_thinking", "True", '"enable_thinking" and "chat_template_kwargs" in a record'),
        ("loss_scale", "last_round", "--learn last"),
        ("loss_scale", "ignore_empty_think", "--learn_thoughts filled"),
        ("mask_history", "True", "--learn last"),
        ("last_response_loss", "True", "--learn last"),
    ],
)
def test_other_trainers_flags_lead_here(name: str, value: str, said: str) -> None:
    assert said in (about_value(name, value) or about_foreign(name) or "")
