"""Directories of data: what `datasets` saves, folders of files, and Arrow files as hostile as any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_formats import FORMATS, converted, write_records
from fastsft.runtime.messages import collected
from fastsft.sources.data_files import DataFile, data_files

RECORDS = [{**record, "embedding": [1.0, 2.0], "score": 1} for record in FORMATS["alpaca"]]
datasets = pytest.importorskip("datasets")


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    return converted(write_records(tmp_path / "plain.json", FORMATS["alpaca"]))


def test_a_data_set_saved_to_disk(tmp_path: Path, expected: list[Any]) -> None:
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(RECORDS).save_to_disk(saved, num_shards=2)
    assert converted(saved) == expected
    files = data_files(f"{saved}:2")
    assert [(Path(file.path).name, file.weight) for file in files] == [
        ("data-00000-of-00002.arrow", 2.0),
        ("data-00001-of-00002.arrow", 2.0),
    ]


def test_a_selection_of_rows_is_read_as_datasets_has_it(tmp_path: Path, expected: list[Any]) -> None:
    datasets.Dataset.from_list(RECORDS).select([2, 0]).save_to_disk(tmp_path / "saved")
    assert converted(tmp_path / "saved") == [expected[2], expected[0]]
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    (tmp_path / "saved" / "state.json").write_text(json.dumps({**state, "_indices_files": [{}]}))
    with pytest.raises(
        ValueError, match="a selection of rows, which only datasets can read; save flatten_ind"
    ):
        data_files(str(tmp_path / "saved"))


def test_a_dictionary_of_data_sets_needs_a_split(tmp_path: Path, expected: list[Any]) -> None:
    one = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    both = tmp_path / "both"
    with pytest.raises(ValueError, match=f"with the splits train, test; name one: {both}/train"):
        data_files(str(both))
    assert converted(both / "train") == expected


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"], "data/train*.parquet"),
        (["default/validation/0.jsonl.gz", "README.md"], "default/validation/*.jsonl.gz"),
        (["en/train/0001.parquet", "en/test/0001.parquet"], "en/train/*.parquet"),
    ],
)
def test_a_clone_of_the_hub_names_the_files_below(names: list[str], pattern: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match="is a directory; name its files: ") as caught:
        data_files(str(tmp_path))
    assert str(caught.value).endswith(f": {tmp_path}/{pattern}")


@pytest.mark.parametrize("kind", ["parquet", "arrow file", "jsonl"])
def test_a_folder_of_files_of_one_kind(kind: str, tmp_path: Path, expected: list[Any]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, record in enumerate(RECORDS):
        part = datasets.Dataset.from_list([record])
        if kind == "parquet":
            part.to_parquet(folder / f"train-{number}.parquet")
        elif kind == "jsonl":
            write_records(folder / f"{number}.jsonl", [record])
        else:
            pytest.importorskip("pyarrow.feather").write_feather(part.data.table, folder / f"{number}.arrow")
    (folder / "README.md").write_text("x")
    (folder / "dataset_info.json").write_text("{}")
    with collected() as notices:
        assert converted(folder) == expected
    assert notices.warned == []
    (folder / "more.xml").write_text("x")
    with collected() as notices:
        data_files(str(folder))
    assert notices.warned == [f"{folder}: not read, as they are no data files: more.xml"]


def test_folders_that_leave_a_choice_are_refused(tmp_path: Path) -> None:
    for names, reason in (
        (["a.jsonl", "b.parquet"], r"files of several kinds \(.jsonl, .parquet\); name those that are meant"),
        (["test-0.json", "train-0.json"], r"with the splits test, train; name one: .*/train\*.json"),
        (["my_test.json", "my_train.json"], r"with the splits test, train; name one"),
        (["data.jsonl", "test.jsonl"], r"with the splits test; name one"),
        (["README.md"], r"expected a directory with data files \(.json, .*\), found README.md; name another"),
    ):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")
        with pytest.raises(ValueError, match=reason):
            data_files(str(folder))


@pytest.mark.parametrize(
    "state",
    ["", "[]", "{}", '{"_data_files": [{"filename": "../plain.json"}]}', '{"_data_files": [5]}',
     '{"_data_files": [{"filename": "absent.arrow"}]}', "[" * 100_000],
)  # fmt: skip
def test_a_description_that_is_wrong_is_one_line(state: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(ValueError, match=r"state\.json") as caught:
        data_files(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_damaged_arrow_files_are_named(tmp_path: Path) -> None:
    datasets.Dataset.from_list(FORMATS["alpaca"] * 50).save_to_disk(tmp_path / "saved")
    (path,) = [Path(file.path) for file in data_files(str(tmp_path / "saved"))]
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:100],
        whole[:middle],
        whole[:-8],
        whole[:middle] + b"\xff" * 500 + whole[middle + 500 :],
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"\.arrow: cannot be unpacked to its end"):
            converted(path)


def test_arrow_rows_of_nothing_and_columns_of_no_format(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.arrow"
    for table, reason in (
        (pyarrow.table({"text": pyarrow.nulls(20_000_000)}), r"20000000 rows in \d+ bytes, at most"),
        (
            pyarrow.table({"a": [1], "b": [2]}),
            r"arrow: expected columns of a data format, got a, b; rename them, as in [\w./]+$",
        ),
    ):
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        with pytest.raises(ValueError, match=reason):
            converted(path)
    assert not DataFile(str(path)).is_stream
