"""FastChat's data files: what is read, and which record, field and byte a fault is reported at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.data.chat.labelling import make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy").native
SOUND = json.dumps({"id": "a", "conversations": human_gpt("Hi", "Ho")})


def label(tmp_path: Path, data: bytes | str) -> Any:
    path = tmp_path / "data.json"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return _C.label_file(str(path), make_labeller(TOKENIZER, 64, 0))


@pytest.mark.parametrize(
    "data",
    [
        f"[{SOUND}]",
        f"\ufeff [ {SOUND} ] \n",
        '[{"x": [1, -0.5e+3, {"y": NaN}], "conversations": [{"value": "Hi", "from": "human"},'
        '{"from": "gpt", "value": "Ho", "z": -Infinity}], "id": 7, "u": "\\ud83d\\ude00\\ud800"}]',
        '[{"conversations": 5, "conversations": [{"from": "human", "value": "H\\u0069"},'
        '{"from": "gpt", "value": "Ho"}]}]',
    ],
)
def test_the_same_conversation_in_other_spellings(data: str, tmp_path: Path) -> None:
    expected, read = label(tmp_path, f"[{SOUND}]"), label(tmp_path, data)
    assert not read.faults
    assert read.dataset.ids(0).tolist() == expected.dataset.ids(0).tolist()
    assert json.loads(data.lstrip("\ufeff"))  # Python's reader takes it, too


def test_escapes_are_those_of_python(tmp_path: Path) -> None:
    text = 'q"\\/\b\f\n\r\t\u0000\u00e9\u4f60\U0001f600'
    for ascii_only in (True, False):
        data = json.dumps([{"conversations": human_gpt("Hi", text)}], ensure_ascii=ascii_only)
        ids = label(tmp_path, data).dataset.ids(0).tolist()
        assert text in TOKENIZER.decode(ids)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "the file is empty"),
        (f"[{SOUND}", "not JSON at byte .*: expected .* got the end of the file"),
        (f"[{SOUND},]", "a value after the comma"),
        (f"[{SOUND}] x", "expected the end of the file"),
        (f"[{SOUND} {SOUND}]", "not JSON at byte"),
        ('[{"a": 01}]', "not JSON at byte 8"),
        ('[{"a": "\n"}]', "control character"),
        ('[{"a": "\\x"}]', "escape sequence"),
        ('[{"a": "\\u12g4"}]', "four hexadecimal digits"),
        ("[{'a': 1}]", "a key in quotes"),
        ('[{"a": tru}]', "expected a value"),
        ('[{"a": -NaN}]', "expected a digit"),
        (b'[{"a": "\xff"}]', "invalid UTF-8 at byte 8"),
        (b'[{"a": "\xed\xa0\x80"}]', "invalid UTF-8 at byte 8"),
        ("[" * 300, "nested deeper"),
        ("7", "expected an array of records or one record per line, got a number"),
    ],
)
def test_not_json(data: bytes | str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        label(tmp_path, data)
    assert "data.json" in str(caught.value)


def test_records_of_lines_and_of_an_array_are_the_same(tmp_path: Path) -> None:
    other = json.dumps({"conversations": human_gpt("Who?", "Me")})
    array, lines = label(tmp_path, f"[{SOUND}, {other}]"), label(tmp_path, f"\n{SOUND}\r\n\n{other}")
    assert [array.dataset.ids(i).tolist() for i in (0, 1)] == [lines.dataset.ids(i).tolist() for i in (0, 1)]
    assert len(lines.dataset) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"conversations": [}', "not JSON at byte"),
        (b'{"id": "a"', "got the end of the line"),
        (SOUND.encode() + b" x", "expected the end of the line"),
        (b'{"id": "\xff"}', "invalid UTF-8 at byte"),
    ],
)
def test_a_line_that_cannot_be_read_is_one_fault(line: bytes, reason: str, tmp_path: Path) -> None:
    sound = SOUND.encode()
    labelled = label(tmp_path, b"\n".join([sound, line, sound]))
    (fault,) = labelled.faults
    assert (fault.kind, fault.record, len(labelled.dataset)) == ("ValueError", 1, 2)
    assert reason in str(fault) and "[line 2, byte " in str(fault)


@pytest.mark.parametrize("first", [b"null", b"7\r\n\n null", b'\xef\xbb\xbf"text"', b" null "])
def test_first_lines_that_are_no_records_are_faults_as_later_ones(first: bytes, tmp_path: Path) -> None:
    labelled = label(tmp_path, first + b"\n" + SOUND.encode())
    assert len(labelled.dataset) == 1
    assert {fault.remark for fault in labelled.faults} == {"not_an_object"}
    assert labelled.faults[0].record == 0


@pytest.mark.parametrize("data", [b"null", b"null\n7\n", b"null 7\n{}", b"null\n[1]\n", b"nul\n{}"])
def test_files_without_a_record_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        label(tmp_path, data)


def test_a_line_that_breaks_off_shows_its_own_end(tmp_path: Path) -> None:
    broken = '{"id": "a", "conversations": [{"from": "human", "value": "\u00e9\u00e9\u00e9\u00e9'
    for end in ("\n", "\r\n", ""):
        (fault,) = label(tmp_path, f"{SOUND}{end or chr(10)}{broken}{end}".encode()).faults
        assert str(fault).endswith(', "value": "\u00e9\u00e9\u00e9\u00e9]') and "[line 2, " in str(fault), end


def test_messages_in_a_file_of_conversations_are_not_fastchats(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    (fault,) = label(tmp_path, f"[{SOUND}, {json.dumps(record)}]").faults
    assert fault.kind == "KeyError"
    assert 'no "conversations"; a file of both is read with --mask_policy spans' in str(fault)
    assert not label(tmp_path, json.dumps([record])).faults  # a file of its own is of another format


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot read the data file"):
        _C.label_file(str(tmp_path / "absent.json"), make_labeller(TOKENIZER, 64, 0))


HUMAN = {"from": "human", "value": "x"}
FAULTS: list[tuple[Any, str, str]] = [
    (7, "TypeError", "record is not an object"),
    ("text", "TypeError", "record is not an object"),
    ({}, "KeyError", 'no "conversations"'),
    ({"conversations": []}, "IndexError", "empty conversation"),
    ({"conversations": ""}, "IndexError", "empty conversation"),
    ({"conversations": None}, "TypeError", '"conversations" is null'),
    ({"conversations": {"0": HUMAN}}, "KeyError", '"conversations" is an object'),
    ({"conversations": [5]}, "TypeError", "message is a number"),
    ({"conversations": [{"value": "x"}]}, "KeyError", 'message has no "from"'),
    ({"conversations": [{"from": "human"}]}, "KeyError", 'message has no "value"'),
    ({"conversations": [{"from": None, "value": "x"}]}, "KeyError", "role is null"),
    ({"conversations": [{"from": [], "value": "x"}]}, "TypeError", "role is a list"),
    (
        {"conversations": [*human_gpt("x"), {"from": "chatgpt", "value": "y"}]},
        "KeyError",
        'role "chatgpt" is not human or gpt',
    ),
    ({"conversations": [{"from": "system", "value": "x"}]}, "KeyError", 'role "system"'),
    ({"conversations": human_gpt("x", 5)}, "TypeError", "text is a number"),
    ({"conversations": human_gpt("x", ["y"])}, "TypeError", "text is a list"),
    ({"conversations": human_gpt("x", {"y": 1})}, "TypeError", "text is an object"),
    ({"conversations": human_gpt("x", True)}, "TypeError", "text is true"),
    ({"conversations": [HUMAN, HUMAN]}, "AssertionError", "two messages of role human in a row"),
    ({"conversations": human_gpt("x", "y")[1:] * 2}, "AssertionError", "two messages of role gpt in a row"),
    ({"conversations": human_gpt("x", "\ud800")}, "RuntimeError", "lone surrogate in text"),
]


@pytest.mark.parametrize(("record", "kind", "reason"), FAULTS)
def test_faults_of_records(record: Any, kind: str, reason: str, tmp_path: Path) -> None:
    named = {"id": "r1", **record} if isinstance(record, dict) else record
    labelled = label(tmp_path, json.dumps([json.loads(SOUND), named, json.loads(SOUND)]))
    (fault,) = labelled.faults
    assert (fault.kind, fault.record) == (kind, 1)
    assert reason in str(fault)
    assert str(fault).startswith("record 1 (id r1)" if isinstance(record, dict) else "record 1:")


@pytest.mark.parametrize("value", [None, 0, 0.0, False, [], {}, ""])
def test_what_python_calls_false_is_an_empty_text(value: Any, tmp_path: Path) -> None:
    labelled = label(tmp_path, json.dumps([{"conversations": human_gpt("Hi", value)}]))
    assert labelled.report.warnings == ["WARNING: tokenization mismatch: 1 vs. 40. #turn = 0. (ignored)"]
    assert labelled.report.entries["empty_last_reply"].first == ["record 0"]
