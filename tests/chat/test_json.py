"""JSON as data files hold it: what is accepted is what Python's json accepts, and nothing else ends badly."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastsft import _C
from fastsft.data.chat.labelling import make_labeller
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt

LABELLER = make_labeller(Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy").native, 64, 0)
SUITE = zipfile.ZipFile(GOLDEN / "json_test_suite" / "cases.zip")
SOUND = json.dumps({"id": "a", "conversations": human_gpt("Hi", "Ho")}).encode()

# Python writes and reads these three, so data files may hold them.
NOT_REFUSED = {"n_number_NaN.json", "n_number_infinity.json", "n_number_minus_infinity.json"}
EITHER_REFUSED = {
    "i_string_UTF-16LE_with_BOM.json", "i_string_UTF-8_invalid_sequence.json",
    "i_string_UTF8_surrogate_U+D800.json", "i_string_invalid_utf-8.json", "i_string_iso_latin_1.json",
    "i_string_lone_utf8_continuation_byte.json", "i_string_not_in_unicode_range.json",
    "i_string_overlong_sequence_2_bytes.json", "i_string_overlong_sequence_6_bytes.json",
    "i_string_overlong_sequence_6_bytes_null.json", "i_string_truncated-utf-8.json",
    "i_string_utf16BE_no_BOM.json", "i_string_utf16LE_no_BOM.json",
    "i_structure_500_nested_arrays.json",  # deeper than 200
    "i_structure_UTF-8_BOM_empty_object.json",  # a byte order mark inside a file
}  # fmt: skip


def read(folder: Path, data: bytes) -> Any:
    path = folder / "data.json"
    path.write_bytes(data)
    return _C.label_file(str(path), LABELLER)


def accepts(folder: Path, data: bytes) -> bool:
    try:
        read(folder, data)
    except ValueError:
        return False
    return True


def test_the_suite_is_whole() -> None:
    assert len(SUITE.namelist()) == 318


@pytest.mark.parametrize("name", SUITE.namelist())
def test_json_suite(name: str, tmp_path: Path) -> None:
    content = SUITE.read(name)
    inside = b'[{"x": ' + content + b', "conversations": []}]'
    expected = name.startswith("y_") or (name.startswith("i_") and name not in EITHER_REFUSED)
    assert accepts(tmp_path, inside) == (expected or name in NOT_REFUSED)
    accepts(tmp_path, content)  # as a data file of its own: ValueError or faults, nothing else
    accepts(tmp_path, SOUND + b"\n" + content)


def python_accepts(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data.decode("utf-8-sig")), list)
    except (ValueError, RecursionError):
        return False


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=70)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(VALUES, max_size=6),
    style=st.sampled_from([None, 0, 1]),
    ascii_only=st.booleans(),
    cut=st.one_of(st.none(), st.tuples(st.floats(0, 1), st.binary(max_size=3))),
)
def test_arrays_are_read_as_python_reads_them(
    values: list[Any], style: int | None, ascii_only: bool, cut: Any, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = json.dumps(values, indent=style, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass")
    if cut is not None:
        at = int(cut[0] * len(data))
        data = data[:at] + cut[1] + data[at + 1 :]
    accepted = accepts(folder, data)
    if data.lstrip(b" \n\t\r")[:1] == b"[":  # else lines, of which each is judged alone
        assert accepted == python_accepts(data)


@settings(max_examples=100, deadline=None)
@given(
    records=st.lists(st.tuples(st.text(max_size=200), st.text(max_size=200)), max_size=40),
    separator=st.sampled_from([", ", ",\n", "\n,\r\n\t", ","]),
)
def test_every_record_is_found(records: list[Any], separator: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.getbasetemp()
    lines = [json.dumps({"conversations": human_gpt(a or "a", b or "b")}) for a, b in records]
    array = read(folder, f"[{separator.join(lines)}]".encode())
    expected = len(lines) - len(array.faults)
    assert len(array.dataset) == expected
    if lines:
        by_line = read(folder, "\n".join(lines).encode())
        assert by_line.dataset.checksum() == array.dataset.checksum()


@pytest.mark.parametrize("as_lines", [False, True])
def test_cut_at_two_hundred_places(as_lines: bool, tmp_path: Path) -> None:
    text = '\ud83d\ude00 \\" [{ 你好 '
    records = [json.dumps({"id": i, "conversations": human_gpt(text, text * i)}).encode() for i in range(8)]
    data = b"\n".join(records) if as_lines else b"[" + b",\n".join(records) + b"]"
    for at in range(1, len(data), max(len(data) // 200, 1)):
        part = data[:at]
        if not as_lines:
            with pytest.raises(ValueError, match="not JSON at byte") as caught:
                read(tmp_path, part)
            assert "data.json: record" in str(caught.value)
            continue
        labelled = read(tmp_path, part)
        whole = sum(len(b"\n".join(records[: i + 1])) <= at for i in range(8))
        assert len(labelled.dataset) == whole
        assert len(labelled.faults) <= 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * 1_000_000, "nested deeper"),
        (b'[{"x":' * 500_000, "nested deeper"),
        (b"[" + SOUND + b"\0]", "not JSON at byte"),
        (b"[" + SOUND.replace(b"Hi", b"H\0i") + b"]", "no control character in a string"),
        (("[" + SOUND.decode() + "]").encode("utf-16"), "got UTF-16 text"),
        (("[" + SOUND.decode() + "]").encode("utf-16-le"), "got UTF-16 text; iconv -f UTF-16LE"),
        (("[" + SOUND.decode() + "]").encode("utf-16-be"), "got UTF-16 text, or binary; iconv -f UTF-16BE"),
        (("[" + SOUND.decode() + "]").encode("utf-32"), "got UTF-32 text; iconv -f UTF-32"),
        (("[" + SOUND.decode() + "]").encode("utf-32-le"), "got UTF-32 text; iconv -f UTF-32LE"),
        (("[" + SOUND.decode() + "]").encode("utf-32-be"), "got UTF-32 text, or binary; iconv -f UTF-32BE"),
        (b"\0\0\xfe\xff\0\0\0[", "got UTF-32 text"),
        (b"\x1f\x8b\x08\x00abc", "got gzip"),
        (b"PK\x03\x04abc", "got a ZIP archive"),
        (b"[" + SOUND + b",]", "a value after the comma"),
        (b"[" + SOUND + b"][" + SOUND + b"]", "expected the end of the file"),
        (b"[" + SOUND + b"}", 'expected "," or "]"'),
        (b'"text"', r'one record per line, got text \[line 1, column 1: "text"\]'),
        (b"\n\n  oops \xff\nmore", r"not JSON at byte 4: expected a value \[line 3, column 3: oops \?\]"),
        (b"\xef\xbb\xbf7", r"got a number \[line 1, column 4: 7\]"),
        (b" \n ", "the file is empty"),
    ],
)
def test_refused_with_the_reason(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        read(tmp_path, data)


def test_faults_name_line_column_and_what_stands_there(tmp_path: Path) -> None:
    data = b"[\n" + SOUND + b',\n {"id": "b", "conversations": nope}\n]'
    with pytest.raises(ValueError, match="record 1") as caught:
        read(tmp_path, data)
    byte = data.index(b"nope")
    column = byte - data.rindex(b"\n", 0, byte)
    assert f"record 1 (id b): not JSON at byte {byte}: expected a value" in str(caught.value)
    assert f"[line 3, column {column}: " in str(caught.value)
    assert '"conversations": nope}' in str(caught.value)


def test_line_ends_marks_and_missing_newlines(tmp_path: Path) -> None:
    plain = read(tmp_path, SOUND + b"\n" + SOUND + b"\n").dataset.checksum()
    for data in (
        SOUND + b"\r\n" + SOUND,
        b"\xef\xbb\xbf" + SOUND + b"\n\n" + SOUND,
        b"\xef\xbb\xbf[" + SOUND + b",\r\n" + SOUND + b"]\r\n",
        b" \n\t" + SOUND + b"\n \n" + SOUND + b"\n ",
    ):
        assert read(tmp_path, data).dataset.checksum() == plain


def test_records_longer_than_a_block(tmp_path: Path) -> None:
    texts = ["x" * size for size in (10, 1 << 17, 3 << 19, 7, (1 << 18) - 90)]
    records = [json.dumps({"conversations": human_gpt(text, "y")}).encode() for text in texts]
    one, two = (read(tmp_path, data) for data in (b"[" + b",".join(records) + b"]", b"\n".join(records)))
    assert len(one.dataset) == len(texts)
    assert one.dataset.checksum() == two.dataset.checksum()


def test_vectors_and_plain_code_see_the_same() -> None:
    text = (b'{"a": "\\\\\\"[x]\xc3\xa9", [1, {}]}\t\n' * 40)[: 64 * 20]
    assert _C.classify_json(text, portable=False) == _C.classify_json(text, portable=True)
    for size in range(120):
        piece = b"a" * size + b'"' + b"b" * 70
        for special in (b'"', b"\\", b"\x1f"):
            data = piece.replace(b'"', special)
            for prefix in (b"", b"\xc3\xa9"):
                vector, plain = (_C.find_string_special(prefix + data, portable=p) for p in (False, True))
                assert vector == plain == (len(prefix) + size, bool(prefix))


@pytest.mark.chaos
def test_a_string_of_a_gigabyte(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    with path.open("wb") as file:
        file.write(b'[{"x": "')
        for _ in range(1 << 10):
            file.write(b"y" * (1 << 20))
        file.write(b'", ' + SOUND[1:] + b"]")
    assert len(_C.label_file(str(path), LABELLER).dataset) == 1


@pytest.mark.chaos
def test_a_missing_quote_is_found_before_all_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    with path.open("wb") as file:
        file.write(b"[" + SOUND[:-3] + b",\n")
        for _ in range(3 << 20):
            file.write(SOUND + b",\n")
        file.write(SOUND + b"]")
    with pytest.raises(ValueError, match="record 0"):
        _C.label_file(str(path), LABELLER)
