"""Fields that say whether a message or record is learned: each is followed, or stops the run and is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_formats import converted, labelled, write_records
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from golden_text import GOLDEN, MODES, human_gpt

NATIVE = _C.load_tokenizer(str(GOLDEN / "tokenizers" / MODES[0]))[0]
SPANS = make_labeller(NATIVE, 512, 0, LabelSettings(mask_policy="spans", template="vicuna_v1.1"))
FASTCHAT = make_labeller(NATIVE, 512, 0)

TRUE = [True, 1, 1.0, "1", "1.0", "true", "True", " yes ", "on"]
FALSE = [False, 0, 0.0, -0.0, "0", "0.0", "false", "FALSE", "no", "off"]
NEITHER = [
    0.5,
    2,
    -1,
    1e-9,
    float("nan"),
    float("inf"),
    "maybe",
    "0.5",
    "",
    "null",
    [],
    [0],
    {},
    {"value": 0},
]
# Of axolotl, OpenAI, Mistral, ms-swift, xtuner, GLM, torchtune, slime, Megatron, and spellings of them.
LEARNED = ["train", "weight", "loss", "loss_scale", "training", "Train", "WEIGHT", "lossScale",
           "Loss-Weight", "trainable", "is_trained", "train_on_turn", "compute_loss",
           "should_learn", "sample_weight"]  # fmt: skip
NOT_LEARNED = [
    "masked",
    "is_masked",
    "no_loss",
    "noTrain",
    "exclude_from_training",
    "ignore_loss",
    "untrainable",
]
UNCLEAR = ["mask", "loss_mask", "step_loss_mask", "train_detail", "assistant_masks", "Mask"]
OTHER = ["constraint", "glossary", "learning_rate", "train_split", "weight_kg", "eval_loss", "training_date",
         "trainer", "blossom", "language", "id2", "quality"]  # fmt: skip


def record(field: str, value: Any, *, index: int = 1, form: str = "messages") -> dict[str, Any]:
    """Two turns, of whose messages one has the field; -1: the record has it."""
    turns = human_gpt("Hi", "one", "He", "two")
    if form == "messages":
        role = {"human": "user", "gpt": "assistant"}
        turns = [{"role": role[each["from"]], "content": each["value"]} for each in turns]
    made = {"id": "r7", form: turns}
    (made if index < 0 else turns[index])[field] = value
    return made


def seen(record: Any, labeller: Any = SPANS) -> Any:
    return _C.explain_record(json.dumps(record), labeller, data_format="auto")


def replies(explained: Any) -> list[str]:
    """Those of "one" and "two" that are learned."""
    learned = b"".join(
        explained.text_bytes[begin:end] for _, begin, end, is_learned in explained.tokens if is_learned
    ).decode()
    return [reply for reply in ("one", "two") if reply in learned]


@pytest.mark.parametrize("form", ["messages", "conversations"])
@pytest.mark.parametrize("name", [*LEARNED, *NOT_LEARNED])
def test_values_that_say_something_are_followed(name: str, form: str) -> None:
    says, denies = (TRUE, FALSE) if name in LEARNED else (FALSE, TRUE)
    for value in [*says, None]:
        for index in (1, -1):
            assert replies(seen(record(name, value, index=index, form=form))) == ["one", "two"], value
    for value in denies:
        assert replies(seen(record(name, value, form=form))) == ["two"], value
        assert replies(seen(record(name, value, index=3, form=form))) == ["one"], value
        out = seen(record(name, value, index=-1, form=form))
        assert out.outcome == "excluded" and [each.remark for each in out.findings] == ["not_trained"], value


@pytest.mark.parametrize("name", [*LEARNED[:4], *NOT_LEARNED[:2]])
def test_other_values_stop_the_run(name: str) -> None:
    for value in NEITHER:
        for index in (1, -1):
            (fault,) = seen(record(name, value, index=index)).faults
            assert (fault.remark, fault.always_stops, fault.message) == ("bad_mark", True, index)
            assert str(fault).startswith("record 0 (id r7)" + (", message 1" if index > 0 else ""))
            assert f'"{name}" is {json.dumps(value)}' in str(fault) and "expected true or false" in str(fault)


@pytest.mark.parametrize("name", UNCLEAR)
def test_names_that_trainers_read_in_opposite_ways_stop_the_run(name: str) -> None:
    for value in (
        True,
        False,
        0,
        1,
        0.5,
        [0, 1],
        [{"begin_offset": 0, "end_offset": 2, "train": False}],
        "0",
    ):
        # Of a record, only lists have the form of marks under a name of other words, too.
        for index in (1, -1) if name != "train_detail" or isinstance(value, list) else (1,):
            (fault,) = seen(record(name, value, index=index)).faults
            assert fault.remark == "bad_mark" and 'write "train": true or "train": false' in str(fault)
    for nothing in (None, [], ""):
        assert replies(seen(record(name, nothing))) == ["one", "two"]


@pytest.mark.parametrize(("name", "value"), [
    ("weight", "70 kg"), ("training", "NASA"), ("train", "ICE 520"), ("mask", "N95"), ("mask", "User"),
    ("loss", "Big loss"), ("used_in_training", "yes"), ("hair_loss", True), ("score_weight", 0.8),
    ("patient", {"weight": 70}),
])  # fmt: skip
def test_columns_of_data_are_not_used(name: str, value: Any) -> None:
    assert replies(seen(record(name, value, index=-1))) == ["one", "two"]


@pytest.mark.parametrize("value", ["disabled", "never", "none", "exclude"])
def test_words_that_may_be_a_wish_stop_the_run(value: str) -> None:
    for index in (1, -1):
        (fault,) = seen(record("train", value, index=index)).faults
        assert fault.remark == "bad_mark"
    (fault,) = (
        seen(record("train_mode", value)).faults if value != "never" else seen(record("train", value)).faults
    )
    assert fault.remark == "bad_mark"


def test_lists_written_as_text_are_lists() -> None:
    for value in ('[{"begin_offset": 0, "end_offset": 1, "train": false}]', "[0, 1]"):
        (fault,) = seen(record("train_detail", value)).faults
        assert fault.remark == "bad_mark"


def test_results_of_tools_are_data() -> None:
    made = record("id", "x")
    made["messages"][2:2] = [{"role": "tool", "content": [{"item": "bag", "weight": 2.5, "train": "ICE"}]}]
    assert not seen(made).faults


@pytest.mark.parametrize("name", OTHER)
def test_other_names_are_fields_that_are_not_used(name: str) -> None:
    for value in (0, False, "no", 0.5):
        assert (
            replies(seen(record(name, value)))
            == ["one", "two"]
            == replies(seen(record(name, value, index=-1)))
        )


def test_on_what_is_no_reply() -> None:
    """A text that is wanted learned and is none stops; that context is not learned needs no word."""
    system = {"role": "system", "content": "Be kind."}
    for value in (False, 0, "no", None):
        assert replies(seen(record("train", value, index=0))) == ["one", "two"]
    (fault,) = seen(record("weight", 1, index=2)).faults
    assert fault.message == 2 and "role user is context, and only replies are learned" in str(fault)
    whole = record("train", None)
    whole["messages"].insert(0, {**system, "train": True})
    assert "role system" in str(seen(whole).faults[0])
    prompt = {"prompt": record("loss", True)["messages"][:3], "completion": "two"}
    assert "a reply of the prompt" in str(seen(prompt).faults[0])


def test_several_fields() -> None:
    two = record("train", True)
    two["messages"][1]["weight"] = 0
    assert "is 0, which says the opposite" in str(seen(two).faults[0])
    two["messages"][1]["weight"] = 1
    assert replies(seen(two)) == ["one", "two"]
    two["messages"][1] |= {"train": None, "weight": 0}
    assert replies(seen(two)) == ["two"]
    one = record("train", True)
    one["train"] = False  # the message's own counts
    assert replies(seen(one)) == ["one"]
    text = json.dumps(record("train", 0)).replace('"train": 0', '"train": 0, "train": 1')
    assert replies(_C.explain_record(text, SPANS, data_format="auto")) == ["one", "two"]  # as in Python


def test_inside_other_fields() -> None:
    for index in (1, -1):
        for inside in ({"train": False}, {"weight": 0}, {"masked": 1}, {"no_loss": "true"}):
            (fault,) = seen(record("metadata", inside, index=index)).faults
            assert '"metadata.' in str(fault) and 'it stands inside "metadata"' in str(fault)
        for data in ({"train": True, "split": 0}, {"weight": 70}, {"mask": "a.png"}, {"loss": 0.5}):
            assert replies(seen(record("metadata", data, index=index))) == ["one", "two"]
    tools = [{"type": "function", "function": {"name": "train", "parameters": {"weight": 0}}}]
    assert replies(seen(record("tools", tools, index=-1))) == ["one", "two"]


def test_parts_of_a_content() -> None:
    def parts(*marks: Any) -> Any:
        made = record("train", None)
        texts = ["one"] if len(marks) == 1 else ["o", "ne"]
        made["messages"][1]["content"] = [
            {"type": "text", "text": text, **({} if mark is None else {"train": mark})}
            for text, mark in zip(texts, marks, strict=True)
        ]
        return seen(made)

    assert replies(parts(False)) == ["two"] and replies(parts(True, None)) == ["one", "two"]
    assert "a part of the content" in str(parts(False, True).faults[0])
    assert "a part of the content" in str(parts(None, 0).faults[0])


@pytest.mark.parametrize("on_bad_sample", ["error", "skip", "repair"])
def test_no_rule_for_bad_samples_lets_them_pass(on_bad_sample: str, tmp_path: Path) -> None:
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1", on_bad_sample=on_bad_sample)
    found = labelled(
        write_records(tmp_path / "d.jsonl", [record("train", None), record("weight", 0.5)]),
        make_labeller(NATIVE, 512, 0, settings),
    )
    (fault,) = found.faults
    assert (fault.record, fault.line, fault.message) == (1, 2, 1)


def test_fastchats_labels_learn_every_reply() -> None:
    """They ignore such fields, so a reply that is not wanted stops them; without a wish nothing changes."""
    plain = seen(record("source", "x", form="conversations"), FASTCHAT).tokens
    for name, value in (("train", True), ("weight", 1), ("train", None), ("masked", False)):
        for index in (1, -1):
            assert seen(record(name, value, index=index, form="conversations"), FASTCHAT).tokens == plain
    for name, value in (("train", False), ("weight", 0), ("train", "no"), ("masked", True), ("mask", 1)):
        for index in (1, -1):
            (fault,) = seen(record(name, value, index=index, form="conversations"), FASTCHAT).faults
            assert fault.remark == "bad_mark"
    assert "--mask_policy spans leaves this one out" in str(
        seen(record("train", 0, form="conversations"), FASTCHAT).faults[0]
    )


def test_every_format_of_records() -> None:
    made = [
        {"instruction": "Hi", "output": "one"},
        {"prompt": "Hi", "completion": "one"},
        {"question": "Hi", "answer": "one"},
        {"text": "one"},
    ]
    for each in made:
        assert replies(seen({**each, "train": 1})) == ["one"], each
        assert seen({**each, "loss": "false"}).outcome == "excluded"
        assert seen({**each, "weight": 0.3}).faults[0].remark == "bad_mark"
        assert seen({**each, "mask": True}).faults[0].remark == "bad_mark"


def test_conversion_keeps_them(tmp_path: Path) -> None:
    path = write_records(tmp_path / "d.json", [record("weight", "0"), record("training", 0, index=-1)])
    first, second = converted(path)
    assert [each.get("train") for each in first["conversations"]] == [None, False, None, None]
    assert second["train"] is False


@pytest.mark.parametrize("field", ["trAin", "tRAIN", "LosS", "weIght"])
def test_capitals_inside_of_a_word_hide_no_mark(field: str) -> None:
    assert replies(seen(record(field, False))) == ["two"]


@pytest.mark.parametrize("field", ["notRain", "skipped_tokens", "ignored_tokens", "skip_steps"])
def test_data_with_words_of_marks_stops_nothing(field: str) -> None:
    for value in (12, True, "12"):
        assert replies(seen(record(field, value))) == ["one", "two"]


@pytest.mark.parametrize("field", ["loss_tokens", "lossTokens", "train-steps"])
def test_a_figure_that_is_a_flag_stops(field: str) -> None:
    """A number of tokens is data; true or false is none."""
    assert replies(seen(record(field, 512))) == ["one", "two"]
    for value in (True, False):
        (fault,) = seen(record(field, value)).faults
        assert fault.remark == "bad_mark" and fault.always_stops and field in str(fault)
