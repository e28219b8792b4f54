"""CSV: a row a record, with the labels of the same records as JSON; what is no table stops with its line."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from bounded_child import label_bounded
from data_formats import FORMATS, converted, write_records
from fastsft.sources.data_files import data_files
from fastsft.sources.file_formats import CsvLines
from fastsft.sources.readers import read_content

RECORDS: dict[str, list[dict[str, Any]]] = {
    "alpaca": [{**record, "history": None} for record in FORMATS["alpaca"]],
    "prompt_completion": FORMATS["prompt_completion"],
    "question_answer": FORMATS["question_answer"],
}


def as_csv(records: list[dict[str, Any]], delimiter: str = ",", newline: str = "\r\n") -> bytes:
    text = io.StringIO(newline="")
    names = [name for name in records[0] if name != "history"]
    writer = csv.DictWriter(text, names, extrasaction="ignore", delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def without_history(name: str) -> list[Any]:
    return [{key: value for key, value in each.items() if key != "history"} for each in RECORDS[name]]


@pytest.mark.parametrize("name", RECORDS)
def test_rows_are_the_records_of_the_same_json(name: str, tmp_path: Path) -> None:
    expected = converted(write_records(tmp_path / "plain.json", without_history(name)))
    content = as_csv(RECORDS[name])
    forms = {
        "a.csv": content,
        "b.CSV": b"\xef\xbb\xbf" + as_csv(RECORDS[name], newline="\n") + b"\n\n",
        "c.csv": as_csv(RECORDS[name], ";"),
        "d.tsv": as_csv(RECORDS[name], "\t"),
        "e.csv.gz": gzip.compress(content),
    }
    for file, data in forms.items():
        (tmp_path / file).write_bytes(data)
        assert converted(tmp_path / file) == expected, file


def test_cells_stay_as_they_are_written(tmp_path: Path) -> None:
    """pandas makes a number of 0012, and nothing of NA; a column without a name is its index."""
    path = tmp_path / "a.csv"
    path.write_text(',instruction,output\n0,0012,NA\n1,"a\r\nb",1e5\n')
    assert read_content(data_files(str(path))) == [
        {"instruction": "0012", "output": "NA"},
        {"instruction": "a\r\nb", "output": "1e5"},
    ]


def test_what_is_not_to_be_learned_is_not(tmp_path: Path) -> None:
    """pandas writes a column of booleans as False and True."""
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion,train\na,b,False\nc,false,true\n")
    assert [each["train"] for each in read_content(data_files(str(path)))] == [False, True]
    path.write_text("prompt,completion,label\na,b,False\n")
    with pytest.raises(AssertionError, match=r"label.* is false: .*preference data, as for KTO"):
        converted(path)


def test_one_row_is_a_list_for_scripts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,completion\na,b\n")
    assert len(read_content(data_files(str(path)))) == 1


def test_a_long_cell_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.csv").write_text(f"prompt,completion\n{number},{'word ' * 100_000}\n")
    found = converted(folder)
    assert [each["conversations"][0]["value"] for each in found] == ["0", "1"]
    assert len(found[0]["conversations"][1]["value"]) == 500_000


def test_json_in_a_file_with_that_name(tmp_path: Path) -> None:
    """Content goes before the name."""
    path = tmp_path / "a.csv"
    write_records(tmp_path / "a.jsonl", FORMATS["alpaca"]).rename(path)
    assert converted(path) == converted(write_records(tmp_path / "a.json", FORMATS["alpaca"]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"prompt,completion\na,b\na,b,c\n", "a.csv: line 3: expected 2 fields, as the header has, got 3"),
        (b'prompt,completion\n"a\nb",c\n\nd\n', "a.csv: line 5: expected 2 fields, as the header has, got 1"),
        (b'prompt,completion\na,b\na,"b\nc,d\n', "a.csv: line 3: a quote has no end; write it"),
        (b'prompt,completion\n"a"b,c\n', "a.csv: line 2: '[,]' expected after '\"'"),
        (b"prompt,completion\na,\xe9\n", "invalid UTF-8 .invalid continuation byte.; save it as UTF-8"),
        ("prompt,completion\n".encode("utf-16"), "invalid UTF-8 .invalid start byte.; save it as UTF-8"),
        (b"prompt,prompt\na,b\n", "expected a first line with the names of its columns, got prompt twice"),
        (b"", "expected a first line with the names of its columns, got none"),
        (b"\n", "expected a first line with the names of its columns, got none"),
    ],
)  # fmt: skip
def test_what_is_no_table_stops_with_its_line(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_content(data_files(str(path)))


def test_reads_of_any_size_give_the_same_bytes() -> None:
    data = as_csv(RECORDS["alpaca"])
    whole = CsvLines(io.BytesIO(data), "a.csv").read(1 << 20)
    for size in (1, 7, 64):
        lines = CsvLines(io.BytesIO(data), "a.csv")
        assert b"".join(iter(lambda lines=lines, size=size: lines.read(size), b"")) == whole


@pytest.mark.parametrize(
    "where", ["cell", "quoted cell", "header", "quote without an end", "many short lines"]
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.csv.gz"])
def test_a_long_row_is_not_read_to_its_end(name: str, where: str, tmp_path: Path) -> None:
    """Rows above the limit are refused with their line while they are read, whatever makes them long."""
    comma, limit = "\t" if "tsv" in name else ",", 1000
    long = "x" * 5000
    rows = {
        "cell": f"prompt{comma}completion\na{comma}{long}\n",
        "quoted cell": f'prompt{comma}completion\na{comma}"{long}"\n',
        "header": f"prompt{comma}{long}\na{comma}b\n",
        "quote without an end": f'prompt{comma}completion\na{comma}"b\n' + f"c{comma}d\n" * 2000,
        "many short lines": f'prompt{comma}completion\na{comma}"' + "b\n" * 2000 + '"\n',
    }
    text, path = rows[where].encode(), tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    line = 1 if where == "header" else 2
    with pytest.raises(ValueError, match=rf"{name}: line {line}: the row has more than 1000 characters"):
        read_content(data_files(str(path)), limit)
    if where != "quote without an end":
        assert read_content(data_files(str(path)), 20_000)


def test_a_bomb_in_a_cell_takes_no_memory(tmp_path: Path) -> None:
    """700 MB of one cell in 3 MB of gzip."""
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"prompt,completion\na,")
        for _ in range(700):
            file.write(b"x" * 1_000_000)
        file.write(b"\n")
    outcome = label_bounded(path)
    assert outcome.said.startswith("ValueError: ") and "line 2: the row has more than" in outcome.said
    assert outcome.peak - outcome.start < 800 << 10


def test_a_header_of_many_columns(tmp_path: Path) -> None:
    """Looked through once: comparing 100,000 names with each other takes minutes."""
    path = tmp_path / "a.csv"
    names = ",".join(f"column_{number}" for number in range(100_000))
    path.write_text(f"{names},column_7\n")
    with pytest.raises(ValueError, match="columns, got column_7 twice"):
        read_content(data_files(str(path)))
