"""--train_turns each: every reply in a row of its own, for templates that rewrite earlier replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from family_models import write_family
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, describe, describe_labels, make_labeller
from fastsft.data.data_module import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from golden_text import human_gpt

LENGTH = 512
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the chat template that Qwen3 is published with."""
    return write_family(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


def labeller(
    model: Path, length: int = LENGTH, tokenizer: Any = None, **settings: Any
) -> tuple[_C.Labeller, Tokenizer]:
    tokenizer = tokenizer or Tokenizer.from_pretrained(model, model_max_length=length)
    chosen = LabelSettings(**{"mask_policy": "spans", **settings})
    native = find_native_tokenizer(tokenizer)
    assert native is not None
    return make_labeller(native, length, 0, chosen, tokenizer=tokenizer, self_test=True), tokenizer


def label(records: list[Any], using: _C.Labeller) -> Any:
    return _C.label_text(json.dumps(records), using)


def rows(seen: Any) -> list[tuple[list[int], list[tuple[int, int]]]]:
    return [(seen.dataset.ids(i).tolist(), seen.dataset.learned(i)) for i in range(len(seen.dataset))]


RECORDS = [
    {"id": "one", "conversations": human_gpt("Hi", "Ho")},
    {"id": "two", "conversations": human_gpt("Hi", "Ho", "He", "Ha\n", "Hu", "")[:5]},
    {"id": "three", "system": "Be brief.", "conversations": human_gpt("a b", "c d", "e", "f", "g", "h")},
    {"id": "thoughts", "conversations": human_gpt(
        "a", "<think>\nx\n</think>\n\nb", "c", "<think>\ny\n</think>\n\nd")},
]  # fmt: skip


def prefixes(records: list[Any]) -> Iterator[list[dict[str, str]]]:
    """Of each reply the messages up to it, as transformers takes them."""
    for record in records:
        front = [{"role": "system", "content": record["system"]}] if "system" in record else []
        messages = [{"role": ROLES[m["from"]], "content": m["value"]} for m in record["conversations"]]
        for end, message in enumerate(messages):
            if message["role"] == "assistant":
                yield front + messages[: end + 1]


def test_rows_are_what_transformers_renders(qwen3: Path) -> None:
    """Qwen3's own template, chosen by default: ids of `apply_chat_template`, learned after its prompt."""
    using, _ = labeller(qwen3)
    assert describe(using)["train_turns"] == "each"
    assert "stop token <|im_end|>, each reply in a row of its own" in describe_labels(describe(using))
    theirs = AutoTokenizer.from_pretrained(qwen3)
    stop = theirs.convert_tokens_to_ids("<|im_end|>")
    expected = []
    for messages in prefixes(RECORDS):
        ids = theirs.apply_chat_template(messages)
        prompt = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True)
        assert ids[: len(prompt)] == prompt
        end = len(ids) - ids[::-1].index(stop)
        expected.append((ids, [(len(prompt), end)]))
    seen = label(RECORDS, using)
    assert rows(seen) == expected
    assert len(expected) == 8 == seen.report.num_records == seen.report.num_kept
    split = seen.report.entries["split"]
    assert split.count == 7 and split.reason == "reply 1 of 2, in a row of its own"
    assert split.first[:3] == ["two_1", "two_3", "three_1"]


def test_replies_of_a_list_that_a_script_holds(qwen3: Path) -> None:
    using, _ = labeller(qwen3)
    held = [record["conversations"] for record in RECORDS if "system" not in record]
    given = _C.label_lists(held, using)
    assert given is not None and rows(given) == rows(label([{"conversations": each} for each in held], using))


def test_only_the_last_reply_where_that_is_asked_for(qwen3: Path) -> None:
    using, _ = labeller(qwen3, train_turns="last")
    assert "train_turns" not in describe(using)
    each = rows(label(RECORDS, labeller(qwen3)[0]))
    assert rows(label(RECORDS, using)) == [each[0], each[2], each[5], each[7]]


def test_every_reply_once_with_any_template(qwen3: Path) -> None:
    """With a template that rewrites nothing a row is the beginning of the record's one row."""
    whole, _ = labeller(qwen3, template="chatml")
    each, _ = labeller(qwen3, template="chatml", train_turns="each")
    assert describe(whole).get("train_turns") is None
    expected = []
    for ids, spans in rows(label(RECORDS, whole)):
        for begin, end in spans:
            expected.append((ids[: end + 1], [(begin, end)]))  # and the line break after the stop token
    assert rows(label(RECORDS, each)) == expected


def test_replies_that_are_not_learned_have_no_row(qwen3: Path) -> None:
    using, _ = labeller(qwen3)
    messages = human_gpt("a", "b", "c", "d", "e", "f")
    for index, expected in ((1, [3, 5]), (5, [1, 3])):
        marked = [{**m, "train": False} if i == index else m for i, m in enumerate(messages)]
        alone = [{"conversations": messages[: end + 1]} for end in expected]
        assert rows(label([{"conversations": marked}], using)) == [
            rows(label([one], using))[-1] for one in alone
        ]
    none = label([{"conversations": messages, "train": False}], using)
    assert none.report.num_excluded == 1 and none.report.entries["not_trained"].count == 1


def test_faults_are_found_and_the_sound_replies_kept(qwen3: Path) -> None:
    """What follows a fault is in no row, an empty turn is in none, joined messages are one reply."""
    using, _ = labeller(qwen3)
    broken = [*human_gpt("a", "b", "c", "d"), {"from": "nobody", "value": "x"}, *human_gpt("e", "f")]
    seen = label([{"conversations": broken}], using)
    assert rows(seen) == rows(label([{"conversations": broken[:4]}], using))
    assert seen.report.entries["unknown_role"].count == 1
    empty = human_gpt("a", "b", "", "c", "d", "e")
    seen = label([{"conversations": empty}], using)
    assert rows(seen) == rows(label([{"conversations": empty[:2] + empty[4:]}], using))
    assert seen.report.entries["empty_user"].count == 1
    joined, _ = labeller(qwen3, on_bad_sample="repair")
    twice = [*human_gpt("a", "b"), {"from": "gpt", "value": "c"}, *human_gpt("d", "e")]
    again = [{"conversations": human_gpt("a", "b\n\nc", "d", "e")}]
    assert rows(label([{"conversations": twice}], joined)) == rows(label(again, using))


@pytest.mark.variants("[24]", "[60]")
@pytest.mark.parametrize("length", [24, 40, 60])
def test_replies_beyond_the_row_are_cut_and_told(qwen3: Path, length: int) -> None:
    """As a row of all turns would be cut; they are no records without a label (--max_dropped)."""
    messages = human_gpt(*(f"word {i}" for i in range(200)))
    whole = rows(label([{"conversations": messages}], labeller(qwen3)[0]))
    using, _ = labeller(qwen3, length)
    seen = label([{"conversations": messages}], using)
    kept = [
        (ids[:length], [(spans[0][0], min(spans[0][1], length))])
        for ids, spans in whole
        if spans[0][0] < length
    ]
    assert rows(seen) == kept and 0 < len(kept) < 20
    report = seen.report
    assert report.num_records == report.num_kept == len(kept) and report.num_without_labels == 0
    assert report.entries["reply_truncated"].count > 0
    assert report.entries["split_lost"].count == 1 and "too much text" in report.entries["split_lost"].reason


def test_thoughts_do_not_count_where_the_template_leaves_them_out(qwen3: Path) -> None:
    """Records of long thoughts and short answers: every reply that fits has its row."""
    thought = "<think>\n" + "so and so " * 40 + "\n</think>\n\nYes."
    messages = human_gpt(*(text for i in range(12) for text in (f"q {i}", thought)))
    seen = label([{"conversations": messages}], labeller(qwen3, 400)[0])
    assert len(seen.dataset) == 12 and "split_lost" not in seen.report.entries


def test_a_fault_is_counted_once(qwen3: Path) -> None:
    messages = human_gpt("a", "b", "", "c", "d", "e", "f", "g", "h", "i")
    seen = label([{"conversations": messages}], labeller(qwen3)[0])
    assert len(seen.dataset) == 4 and seen.report.entries["empty_user"].count == 1 == seen.report.num_salvaged


def test_a_long_record_is_rendered_in_time(qwen3: Path) -> None:
    """Each row costs a few renderings of itself, not of all rows before it."""
    messages = human_gpt(*("ab"[i % 2] for i in range(320)))
    seen = label([{"conversations": messages}], labeller(qwen3, 16384)[0])
    assert len(seen.dataset) == 160 and seen.report.num_excluded == 0


def test_a_record_of_very_many_replies_is_left_out(qwen3: Path) -> None:
    """Its rows would be in memory together."""
    seen = label([{"conversations": human_gpt(*(["a"] * 2050))}], labeller(qwen3)[0])
    assert seen.report.num_excluded == 1 and len(seen.dataset) == 0
    assert "1025 replies" in seen.report.entries["split_lost"].reason


def test_split_first_and_then_each(qwen3: Path) -> None:
    messages = human_gpt(*(f"word {i}" for i in range(12)))
    using, tokenizer = labeller(qwen3, 60, overlong="split")
    seen = label([{"id": "r", "conversations": messages}], using)
    split, _ = labeller(qwen3, 60, template="chatml", overlong="split")
    pieces = label([{"conversations": messages}], split)
    texts = [find_native_tokenizer(tokenizer).decode(ids) for ids, _ in rows(pieces)]
    expected = []
    for text in texts:
        count = text.count("<|im_start|>")
        begin = int(text.split("word ")[1].split("<")[0])
        piece = [{"conversations": messages[begin : begin + count]}]
        expected += rows(label(piece, labeller(qwen3, 60)[0]))
    assert rows(seen) == expected and len(texts) > 1


def test_lazy_preprocess_has_no_effect(
    qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    (tmp_path / "d.json").write_text(json.dumps(RECORDS))
    tokenizer = Tokenizer.from_pretrained(qwen3, model_max_length=LENGTH)
    given = SimpleNamespace(
        data_path=str(tmp_path / "d.json"), eval_data_path=None, lazy_preprocess=True, data_cache="none",
        mask_policy="spans",
    )  # fmt: skip
    made = make_supervised_data_module(tokenizer, given)["train_dataset"]
    assert type(made).__name__ == "SupervisedDataset" and len(made) == 8
    assert (
        "--lazy_preprocess has no effect: a record has a row for each of its replies"
        in capsys.readouterr().out
    )


def test_a_lead_only_where_the_template_says_where_replies_begin(qwen3: Path) -> None:
    """Without a generation prompt nobody knows that a role's mark is not learned: refused as before."""
    marks = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = Tokenizer.from_pretrained(qwen3, model_max_length=LENGTH)
    tokenizer.chat_template = marks
    with pytest.raises(ValueError, match=r"ignores add_generation_prompt and writes '<\|im_start\|>"):
        labeller(qwen3, tokenizer=tokenizer, template="model")
