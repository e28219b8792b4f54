"""preprocess, the data sets and make_supervised_data_module: FastChat's tensors, faults and report."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import data
from fastsft.data import errors as data_errors
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, conversation_file, hf_tokenizer, human_gpt, read_records

LEGACY, NONLEGACY = MODES


def ours(mode: str, length: int) -> Tokenizer:
    return Tokenizer.from_pretrained(GOLDEN / "tokenizers" / mode, model_max_length=length)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(
        "fastsft.data.rank0_print", lambda *args: printed.append(" ".join(map(str, args))), raising=False
    )
    return printed


def mismatch(counted: int, real: int, turns: int) -> str:
    return f"WARNING: tokenization mismatch: {counted} vs. {real}. #turn = {turns}. (ignored)"


# Number, messages, real ids (legacy, non-legacy), learned, what is printed (legacy, non-legacy).
CASES: list[tuple[int, list[Any], tuple[int, int], int, tuple[str, str] | None]] = [
    (1, human_gpt("Hi", "I am Vicuna."), (46, 46), 6, None),
    (2, human_gpt("Hello", "Hi there", "Who are you?", "I am Vicuna."), (61, 60), 9, None),
    (3, human_gpt("Hello", "Hi there", "Who?"), (49, 48), 0, (mismatch(43, 49, 1), mismatch(43, 48, 1))),
    (4, human_gpt("Hi", "", "Hello", "Hi there"), (51, 51), 3, None),
    (5, human_gpt("", "Hi there"), (41, 41), 0, (mismatch(1, 41, 1),) * 2),
    (6, human_gpt("Hi", ""), (40, 40), 0, (mismatch(1, 40, 0),) * 2),
    (7, human_gpt("A", "B", "", "C", "D", "E"), (62, 60), 0, (mismatch(42, 62, 3), mismatch(42, 60, 3))),
    (8, human_gpt("say ASSISTANT: now", "ok"), (48, 48), 0, (mismatch(1, 48, 1),) * 2),
    (9, human_gpt("Hi", "I say ASSISTANT: now"), (49, 49), 0, (mismatch(1, 49, 1),) * 2),
    (10, human_gpt("what is </s>?", "ok"), (46, 46), 0, (mismatch(1, 46, 2),) * 2),
    (11, human_gpt("Hi", "ok</s> then"), (45, 44), 0, (mismatch(42, 45, 2), mismatch(42, 44, 2))),
    (12, human_gpt("what is <unk> now", "ok then"), (47, 46), 0, (mismatch(48, 47, 1), mismatch(47, 46, 1))),
    (13, human_gpt("what is <s> now", "ok then"), (48, 47), 3, None),
    (14, human_gpt("Hi", "ok then "), (44, 44), 4, None),
    (15, human_gpt("Hi", " "), (42, 42), 2, None),
    (16, human_gpt("a   b", "   c"), (45, 45), 3, None),
    (17, human_gpt("你好", "你好\uff0c世界 😀\n"), (55, 55), 13, None),
    (18, human_gpt("\nx\n", "\ny\n"), (48, 48), 5, None),
    (19, human_gpt("\ta", "\tb\r\n"), (48, 48), 6, None),
    (20, human_gpt("a\0b", "c\0"), (45, 45), 3, None),
    (21, human_gpt("a▁b", "c▁d", "e", "f▁g"), (56, 55), 6, None),
    (22, human_gpt("Hello", "USER: hi"), (45, 45), 5, None),
    (23, [{"from": "gpt", "value": "x"}, *human_gpt("a", "b")], (42, 42), 2, None),
    (24, [{"from": "gpt", "value": "x"}], (32, 32), 0, (mismatch(1, 32, 0),) * 2),
    (27, human_gpt("x", 0), (40, 40), 0, (mismatch(1, 40, 0),) * 2),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_single_conversations(case: Any, mode: str, lines: list[str]) -> None:
    _, messages, real, learned, printed = case
    out = data.preprocess([messages], ours(mode, 2048))
    assert out["attention_mask"].sum() == real[mode == NONLEGACY]
    assert out["labels"].ne(-100).sum() == learned
    assert lines == ([] if printed is None else [printed[mode == NONLEGACY]])


@pytest.mark.parametrize(
    ("messages", "length", "learned"),
    [
        *((human_gpt("Hello", "Hi there my good friend, how are you"), n, k)
          for n, k in ((41, 1), (45, 5), (48, 8), (50, 10), (51, 10), (60, 10))),
        *((human_gpt("Hello " * 20, "Hi there " * 30), n, 0) for n in (10, 24, 40, 60)),
        *((CASES[1][1], n, k) for n, k in ((44, 3), (50, 3), (55, 3), (58, 6), (60, 8), (61, 9))),
    ],
)  # fmt: skip
def test_truncation(messages: list[Any], length: int, learned: int, lines: list[str]) -> None:
    out = data.preprocess([messages], ours(LEGACY, length))
    assert out["labels"].ne(-100).sum() == learned
    assert lines == []


@pytest.mark.parametrize(
    ("messages", "fastchat_error"),
    [
        (human_gpt("x", "y")[1:] * 2, AssertionError),
        (human_gpt("a") + human_gpt("b", "c"), AssertionError),
        ([], IndexError),
        ([{"from": "system", "value": "x"}], KeyError),
        ([{"from": "chatgpt", "value": "x"}], KeyError),
        ([{"from": "human"}], KeyError),
        (human_gpt("x", 5), TypeError),
        (human_gpt("x", "\ud800"), RuntimeError),
    ],
)
def test_faults_have_both_types(messages: list[Any], fastchat_error: type[Exception]) -> None:
    with pytest.raises(fastchat_error) as caught:
        data.preprocess([human_gpt("Hi", "Ho"), messages], ours(LEGACY, 64))
    assert isinstance(caught.value, data_errors.DataError)
    assert str(caught.value).startswith("record 1")


def fastchat(sources: list[Any], tokenizer: Any) -> tuple[dict[str, torch.Tensor] | str, list[str]]:
    from fastchat.train import train

    train.local_rank = 0
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            return train.preprocess(sources, tokenizer), printed.getvalue().splitlines()
        except Exception as error:
            return type(error).__name__, []


PIECES = (
    "Hello",
    " ",
    "\n",
    "你好",
    "😀",
    "USER:",
    " ASSISTANT: ",
    "ASSISTANT:",
    "</s>",
    "<s>",
    "<unk>",
    "a b",
    "▁",
    "!",
    "1 ",
)
VALUE = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join), st.sampled_from([None, 0, 3, "x " * 30])
)
ROLE = st.sampled_from(["human"] * 20 + ["gpt"] * 20 + ["system"])
ALTERNATING = st.lists(VALUE, min_size=1, max_size=8).map(lambda values: human_gpt(*values))
ANY = st.lists(st.fixed_dictionaries({"from": ROLE, "value": VALUE}), max_size=4)


@functools.cache
def both(mode: str, length: int) -> tuple[Tokenizer, Any]:
    """Ours, and transformers'; made once, and not where tests are only collected."""
    return ours(mode, length), hf_tokenizer(mode, length)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=120, deadline=None)
@given(
    sources=st.lists(st.one_of(ALTERNATING, ANY), min_size=1, max_size=3),
    length=st.sampled_from([16, 50, 64, 256]),
)
def test_any_conversations_equal_fastchat(mode: str, sources: list[Any], length: int) -> None:
    native, theirs = both(mode, length)
    expected, warnings = fastchat(sources, theirs)
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastsft.data.rank0_print", printed.append, raising=False)
        for tokenizer in (native, theirs):  # ours, and the object read natively
            printed.clear()
            if isinstance(expected, str):
                with pytest.raises(data_errors.DataError) as caught:
                    data.preprocess(sources, tokenizer)
                assert expected in [cls.__name__ for cls in type(caught.value).__mro__]
                continue
            out = data.preprocess(sources, tokenizer)
            for name, tensor in expected.items():
                assert out[name].dtype == tensor.dtype
                assert torch.equal(out[name], tensor), name
            assert printed == warnings


def test_an_object_without_a_native_equal_is_called(lines: list[str]) -> None:
    class Other:
        """A tokenizer of another kind: it only has what FastChat uses."""

        def __init__(self, inner: Any, legacy: bool) -> None:
            self.__dict__.update(
                inner=inner, model_max_length=64, pad_token_id=0, bos_token_id=1, eos_token_id=2
            )
            if legacy:
                self.legacy = True

        def __call__(self, text: str, **options: Any) -> Any:
            return self.inner(text, **options)

    inner = hf_tokenizer(LEGACY, 64)
    sources = [human_gpt("Hello", "Hi there", "Who?", "Me"), human_gpt("Hi", "a ASSISTANT: b")]
    expected = data.preprocess(sources, ours(LEGACY, 64))
    assert all(torch.equal(expected[k], v) for k, v in data.preprocess(sources, Other(inner, True)).items())
    data.preprocess(sources[1:], Other(inner, False))  # one turn: `legacy` is not asked for
    with pytest.raises(AttributeError, match="legacy"):
        data.preprocess(sources, Other(inner, False))


@pytest.mark.parametrize("load", [ours, hf_tokenizer])
def test_left_padding_and_a_missing_pad_are_refused(load: Any) -> None:
    tokenizer = load(LEGACY, 64)
    tokenizer.padding_side = "left"
    with pytest.raises(ValueError, match="labels need right padding"):
        data.preprocess([human_gpt("a", "b")], tokenizer)
    tokenizer.padding_side, tokenizer.pad_token = "right", None
    with pytest.raises(ValueError, match="no pad token"):
        data.preprocess([human_gpt("a", "b")], tokenizer)


def test_left_truncation_is_refused() -> None:
    tokenizer = hf_tokenizer(LEGACY, 64)
    tokenizer.truncation_side = "left"
    with pytest.raises(ValueError, match="truncation_side left"):
        data.preprocess([human_gpt("a", "b")], tokenizer)


@pytest.mark.parametrize("part", [slice(0, 2), slice(None), slice(-3, None), slice(1, 5, 2), slice(4, 2)])
def test_slices_are_those_of_the_tensors(part: slice) -> None:
    records = [{"conversations": human_gpt("Hi", "word " * count)} for count in range(1, 7)]
    dataset = data.SupervisedDataset(records, ours(LEGACY, 64))
    rows = dataset[part]
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(rows[name], getattr(dataset, name)[part]), name


def arguments(path: Path, **options: Any) -> Any:
    return SimpleNamespace(
        **{"data_path": str(path), "eval_data_path": None, "lazy_preprocess": False, **options}
    )


@pytest.mark.parametrize("mode", MODES)
def test_eager_lazy_and_file_give_the_same_items(mode: str) -> None:
    path, tokenizer = conversation_file("dummy_conversation"), ours(mode, 128)
    records = read_records("dummy_conversation")
    eager, lazy = data.SupervisedDataset(records, tokenizer), data.LazySupervisedDataset(records, tokenizer)
    modules = [
        data.make_supervised_data_module(tokenizer, arguments(path, lazy_preprocess=b)) for b in (False, True)
    ]
    sets = [eager, lazy, *(module["train_dataset"] for module in modules)]
    assert [type(s) for s in sets] == [data.SupervisedDataset, data.LazySupervisedDataset] * 2
    whole = data.preprocess([record["conversations"] for record in records], tokenizer)
    for dataset in sets:
        assert len(dataset) == len(records)
        for row in (0, 7, 499):
            item = dataset[row]
            assert {k: (v.dtype, v.shape) for k, v in item.items()} == {
                "input_ids": (torch.int64, (128,)),
                "labels": (torch.int64, (128,)),
                "attention_mask": (torch.bool, (128,)),
            }
            assert all(torch.equal(item[k], whole[k][row]) for k in whole)
        assert np.array_equal(dataset.native.lengths(), eager.native.lengths())
    assert torch.equal(eager.labels, whole["labels"])
    assert modules[1]["train_dataset"].raw_data == records
    assert modules[0]["eval_dataset"] is None


def test_report_adds_up_and_max_dropped_stops_above_its_value(
    tmp_path: Path, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept, dropped = human_gpt("Hi", "Ho"), human_gpt("Hi")
    path = tmp_path / "data.json"
    path.write_text(
        json.dumps([{"id": f"n{i}", "conversations": c} for i, c in enumerate([kept] * 6 + [dropped] * 2)])
    )
    tokenizer = ours(LEGACY, 64)
    module = data.make_supervised_data_module(
        tokenizer, arguments(path, max_dropped=0.25, legacy_warnings=True)
    )
    report = module["train_dataset"].report
    assert (report.num_records, report.num_without_labels, report.num_dropped) == (8, 2, 2)
    assert (report.entries["ends_with_user"].count, report.entries["ends_with_user"].first) == (
        2,
        ["n6", "n7"],
    )
    assert len([line for line in lines if line.startswith("WARNING: tokenization mismatch")]) == 2
    # The summary is printed where nobody set local_rank too, unlike FastChat's own lines.
    assert "ends_with_user: dropped 2 (25.00 %), first: n6, n7" in capsys.readouterr().out
    with pytest.raises(
        data_errors.DataError, match=r"2 of 8 conversations have no label(.|\n)*ends_with_user"
    ):
        data.make_supervised_data_module(tokenizer, arguments(path, max_dropped=0.24))
    path.write_text(json.dumps([{"conversations": dropped}]))
    with pytest.raises(data_errors.DataError, match="nothing in this file is learned"):
        data.make_supervised_data_module(tokenizer, arguments(path, max_dropped=1.0))


def test_a_file_without_records(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text("[]")
    with pytest.raises(data_errors.DataError, match=r"got no record; docs/data_files\.md has"):
        data.make_supervised_data_module(ours(LEGACY, 64), arguments(path))


def test_report_is_printed_by_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"conversations": human_gpt("Hi", "Ho")}]))
    for rank, printed in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        data.make_supervised_data_module(ours(LEGACY, 64), arguments(path))
        assert (f"{path}: " in capsys.readouterr().out) == printed


def test_a_bad_record_of_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(
        json.dumps([{"conversations": human_gpt("a", "b")}, {"id": "z", "conversations": [{"from": "tool"}]}])
    )
    with pytest.raises(KeyError) as caught:
        data.make_supervised_data_module(ours(LEGACY, 64), arguments(path))
    byte = path.read_text().index('{"from": "tool"')
    where = f'[line 1, byte {byte}: {{"from": "tool"}}]}}]]'
    assert str(caught.value) == (
        f'{path}: record 1 (id z), message 0: role "tool" is not human or gpt; FastChat has no tools, '
        f"--mask_policy spans --template model reads them {where}; "
        "--on_bad_sample skip leaves such records out"
    )
