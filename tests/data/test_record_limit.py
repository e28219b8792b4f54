"""One record has a size limit: it is named with its place, and never held several times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bounded_child import label_bounded
from fastsft import _C
from fastsft.arguments import DataArguments
from fastsft.cli import main as cli
from fastsft.sources.data_files import DataFile
from fastsft.sources.readers import MAX_RECORD_BYTES, open_input, read_records

LIMIT = 4096


def record(size: int, name: str = "r") -> bytes:
    """A record of exactly `size` bytes."""
    frame = {"id": name, "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "y"}]}
    text = json.dumps(frame)
    return text.replace('"value": ""', f'"value": "{"x" * (size - len(text))}"').encode()


def count(path: Path, content: bytes, limit: int = LIMIT) -> int:
    path.write_bytes(content)
    return int(_C.count_data([open_input(DataFile(str(path)), None, limit)]).num_records)


FORMS = {"lines": (b"", b"\n", b"\n"), "array": (b"[", b" ,\n ", b"]")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_may_have_so_many_bytes_and_no_more(form: str, place: int, tmp_path: Path) -> None:
    begin, between, end = FORMS[form]
    records = [record(200, str(i)) for i in range(3)]
    records[place] = record(LIMIT)
    assert count(tmp_path / "d", begin + between.join(records) + end) == 3
    records[place] = record(LIMIT + 1)
    content = begin + between.join(records) + end
    with pytest.raises(ValueError) as caught:
        count(tmp_path / "d", content)
    byte = content.index(records[place])
    assert f"d: record {place} has {LIMIT + 1} bytes from byte {byte}; a record may have {LIMIT}" in str(
        caught.value
    )
    assert "--max_record_bytes" in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_does_not_end_is_not_read_to_its_end(form: str, tmp_path: Path) -> None:
    """A line of a gigabyte, of which the file system holds none."""
    path = tmp_path / "d"
    with path.open("wb") as file:
        file.write(b"[" * (form == "array") + b'{"id": "')
        file.truncate(1 << 30)
    outcome = label_bounded(path)
    expected = "not JSON at byte" if form == "array" else f"a record may have {MAX_RECORD_BYTES}"
    assert outcome.said.startswith("ValueError: ") and expected in outcome.said
    assert outcome.peak - outcome.start < 600 << 10


@pytest.mark.parametrize("form", FORMS)
def test_a_sound_record_of_200_mb_is_refused_without_being_held(form: str, tmp_path: Path) -> None:
    begin, between, end = FORMS[form]
    path = tmp_path / "d"
    path.write_bytes(begin + record(200) + between + record(200_000_000) + end)
    outcome = label_bounded(path)
    assert "d: record 1 has " in outcome.said and "--max_record_bytes" in outcome.said
    assert outcome.peak - outcome.start < 800 << 10


def test_white_space_has_the_same_limit_but_in_front_of_everything(tmp_path: Path) -> None:
    path, space = tmp_path / "d", b" " * (LIMIT + 50)
    assert count(path, space * 100 + record(200)) == 1
    assert count(path, space * 100 + b"[" + record(200) + b"]") == 1
    blank = (space[:100] + b"\n") * 1000
    assert count(path, record(200) + b"\n" + blank + record(200)) == 2
    with pytest.raises(ValueError, match=rf"white space of \d+ bytes.* from byte {201}, before record 1"):
        count(path, b"[" + record(200) + b" " * (1 << 19) + b"," + record(200) + b"]")


def test_the_place_of_a_fault_counts_what_was_passed(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"not JSON at byte 300001: expected a value \[line 2, column 1: oops\]"
    ):
        count(tmp_path / "d", b" " * 300_000 + b"\noops")


def test_the_reader_of_python_objects_has_it_too(tmp_path: Path) -> None:
    for content in (record(LIMIT + 1) + b"\n", b"[" + record(LIMIT + 1) + b"]"):
        (tmp_path / "d").write_bytes(content)
        with pytest.raises(
            ValueError, match=rf"d: record 0 has {LIMIT + 1} bytes; a record may have {LIMIT}"
        ):
            read_records([DataFile(str(tmp_path / "d"))], LIMIT)
        assert len(read_records([DataFile(str(tmp_path / "d"))])) == 1


def test_the_flag_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d"
    path.write_bytes(record(LIMIT))
    assert cli.main(["data", "report", str(path), "--max_record_bytes", str(LIMIT)]) == 0
    capsys.readouterr()
    assert cli.main(["data", "report", str(path), "--max_record_bytes", str(LIMIT - 1)]) == 1
    assert f"record 0 has {LIMIT} bytes from byte 0" in capsys.readouterr().err


def test_the_flag_of_training() -> None:
    assert DataArguments().max_record_bytes == MAX_RECORD_BYTES == 1 << 26
    with pytest.raises(ValueError, match="--max_record_bytes: expected at least 1, got 0"):
        DataArguments(data_path=__file__, max_record_bytes=0).check_files()
