"""--data_path: several files, weights, patterns, formats known by content, streams."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastsft import _C, DataArguments, data
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.json_lines import JsonLines
from fastsft.sources.readers import open_input, read_records
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, human_gpt

TOKENIZER = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy", model_max_length=64)
LABELLER = make_labeller(TOKENIZER.native, 64, 0)
RECORDS = [{"id": f"r{i}", "conversations": human_gpt(f"Hi {i}", f"Ho {i}")} for i in range(50)]
LINES = "\n".join(json.dumps(record) for record in RECORDS).encode()


def checksum(*files: DataFile) -> int:
    return int(_C.label_inputs([open_input(file) for file in files], LABELLER).dataset.checksum())


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.json"
    path.write_bytes(LINES)
    return path


def test_formats_are_known_by_content(tmp_path: Path, plain: Path) -> None:
    expected = checksum(DataFile(str(plain)))
    path = tmp_path / "odd.name"
    for content in (
        json.dumps(RECORDS).encode(),
        gzip.compress(LINES),
        gzip.compress(LINES[:999]) + gzip.compress(LINES[999:]),
    ):
        path.write_bytes(content)
        assert checksum(DataFile(str(path))) == expected
        assert read_records([DataFile(str(path))]) == RECORDS


def test_zstandard(tmp_path: Path, plain: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "data.zst"
    frames = zstandard.compress(LINES[:500]), zstandard.compress(LINES[500:])
    skipped = b"\x5f\x2a\x4d\x18\x04\x00\x00\x00size"  # pzstd writes one in front of each frame
    for between in (b"", skipped):
        path.write_bytes(b"".join(between + frame for frame in frames))
        assert checksum(DataFile(str(path))) == checksum(DataFile(str(plain)))


def test_parquet(tmp_path: Path, plain: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    rows = [{**record, "other": 1.5} for record in RECORDS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    assert checksum(DataFile(str(path))) == checksum(DataFile(str(plain)))


def test_a_column_of_bytes_is_told_from_numbers_in_json(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table({"prompt": [b"a"], "completion": [b"b"]}), path)
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "trainer" / "model_untied", model_max_length=64)
    arguments = DataArguments(
        data_path=str(path), mask_policy="spans", on_bad_sample="error", template="vicuna_v1.1"
    )
    with pytest.raises(ValueError, match=r"text is a number .*; a column of bytes or numbers: write it as"):
        data.make_supervised_data_module(tokenizer, arguments)


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_cut_zstandard_file_is_refused(cut: int, tmp_path: Path) -> None:
    """Also where the policy leaves out lines that are no JSON: the end of the file would be lost."""
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "cut.zst"
    path.write_bytes(zstandard.compress(LINES[:500]) + zstandard.compress(LINES[500:])[:-cut])
    with pytest.raises(ValueError, match=r"cut\.zst: cannot be unpacked to its end"):
        checksum(DataFile(str(path)))


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"bad\.parquet: cannot be unpacked"):
        checksum(DataFile(str(path)))


@pytest.mark.parametrize("cut", [5, 60])
def test_a_cut_archive_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(LINES)[:-cut])
    with pytest.raises(ValueError, match=r"cut\.gz: cannot be unpacked to its end"):
        checksum(DataFile(str(path)))


def test_standard_input_and_pipes(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = checksum(DataFile(str(plain)))
    for content in (LINES, gzip.compress(LINES)):
        stdin = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]
        monkeypatch.setattr("sys.stdin", stdin)
        assert checksum(*data_files("-")) == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(LINES))
    writer.start()
    assert checksum(*data_files(str(pipe))) == expected
    writer.join()


def test_lists_patterns_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl", "c.json", "odd,name.json", "odd:2"):
        (tmp_path / name).write_bytes(LINES)
    assert data_files("a.jsonl") == [DataFile("a.jsonl")]
    assert data_files("odd,name.json") == [DataFile("odd,name.json")]
    assert data_files("odd:2") == [DataFile("odd:2")]
    assert data_files("*.jsonl:0.5, c.json:2") == [
        DataFile("a.jsonl", 0.5),
        DataFile("b.jsonl", 0.5),
        DataFile("c.json", 2.0),
    ]
    for spec, reason in (
        ("absent.json", "absent.json is not a file"),
        ("a.jsonl,*.absent", "no file's name matches"),
        (".", "is a directory"),
        ("a.jsonl:0", "must lie above 0"),
        ("-,-", "can be read once"),
    ):
        with pytest.raises(ValueError, match=reason):
            data_files(spec)


def test_a_file_that_fails_to_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="/proc/self/mem: the data file cannot be read: Input/output error"):
        open_input(DataFile("/proc/self/mem"))


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9, 1.0, 2.5])
def test_weights_take_their_share_evenly(weight: float) -> None:
    copies = [_C.copies_of_record(weight, number) for number in range(1000)]
    assert abs(sum(copies) - 1000 * weight) <= 3
    for period in (2, 3, 7):
        assert abs(sum(copies[::period]) - len(copies[::period]) * weight) <= 6
    assert {int(weight), int(weight) + (weight % 1 > 0)} == set(copies)


def test_a_weighted_mixture_has_the_records_that_it_names(tmp_path: Path, plain: Path) -> None:
    array = tmp_path / "array.json"
    array.write_text(json.dumps(RECORDS))
    files = [DataFile(str(plain), 0.5), DataFile(str(array), 2)]
    mixed = _C.label_inputs([open_input(file) for file in files], LABELLER)
    records = read_records(files)
    chosen = _C.label_text(json.dumps(records), LABELLER)
    assert mixed.dataset.checksum() == chosen.dataset.checksum()
    assert mixed.report.num_records == len(records) == len(mixed.dataset)


def test_faults_name_their_file_and_its_record(tmp_path: Path, plain: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(LINES[: LINES.index(b"\n") + 1] + b'{"id": "z", "conversations": []}\n')
    options = SimpleNamespace(data_path=f"{plain},{bad}", eval_data_path=None, lazy_preprocess=False)
    with pytest.raises(IndexError, match=r"bad.jsonl: record 1 \(id z\): empty conversation \[line 2, byte"):
        data.make_supervised_data_module(TOKENIZER, options)


@pytest.mark.parametrize("several", [True, False])
def test_remarks_name_the_file_of_a_record_where_there_are_several(
    tmp_path: Path, plain: Path, several: bool
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(LINES[: LINES.index(b"\n") + 1] + b'{"id": "z", "conversations": []}\n')
    files = [DataFile(str(plain)), DataFile(str(bad), 2)] if several else [DataFile(str(bad))]
    settings = LabelSettings(mask_policy="spans", template="vicuna_v1.1")
    labeller = make_labeller(TOKENIZER.native, 64, 0, settings)
    report = _C.label_inputs([open_input(file) for file in files], labeller).report
    name = f"{bad}: z" if several else "z"
    assert f"first: {name} (empty conversation)" in report.summary()
    reasons = json.loads(report.to_json())["reasons"]
    assert reasons["empty_conversation"]["first"] == [name]
    assert reasons["empty_conversation"]["count"] == (2 if several else 1)


def test_records_of_python_objects() -> None:
    class Dataset:
        """What a Hugging Face data set offers."""

        def __len__(self) -> int:
            return len(RECORDS)

        def __getitem__(self, index: int) -> Any:
            return RECORDS[index]

        def __iter__(self) -> Any:
            return iter(RECORDS)

    ours = data.SupervisedDataset(Dataset(), TOKENIZER)  # type: ignore[arg-type]
    assert ours.native.checksum() == data.SupervisedDataset(RECORDS, TOKENIZER).native.checksum()
    lines = JsonLines(Dataset())  # type: ignore[arg-type]
    read = _C.label_inputs([_C.DataInput("records", lines.read)], LABELLER)
    assert read.dataset.checksum() == ours.native.checksum()


def test_a_slice_of_the_bad_records_outlives_their_owner() -> None:
    bad = b"".join(
        b'{"id": "x%d", "conversations": [{"from": "human"}]}\n' % number for number in range(5000)
    )
    labelled = _C.label_inputs([_C.DataInput("records", io.BytesIO(bad).read)], LABELLER)
    lines = labelled.bad_records[:60]
    before = bytes(lines)
    size = len(labelled.bad_records)
    assert lines.readonly and size > 100_000
    del labelled
    gc.collect()
    others = [b"z" * size for _ in range(50)]
    assert bytes(lines) == before and len(others) == 50


def test_bad_records_are_listed(tmp_path: Path) -> None:
    path, report = tmp_path / "data.jsonl", tmp_path / "bad.jsonl"
    sound = json.dumps(RECORDS[0])
    path.write_text(f'{sound}\n{{"id": "x", "conversations": [{{"from": "tool"}}]}}\nnope\n')
    options = SimpleNamespace(
        data_path=str(path),
        eval_data_path=None,
        lazy_preprocess=False,
        report_bad=str(report),
        mask_policy="spans",
        template="vicuna_v1.1",
        max_dropped=1.0,
    )
    module = data.make_supervised_data_module(TOKENIZER, options)
    assert len(module["train_dataset"]) == 1
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["record"], line["line"], line["action"]) for line in lines] == [
        (1, 2, "excluded"),
        (2, 3, "excluded"),
    ]
    assert lines[0]["id"] == "x"
    assert lines[1]["reason"] == f"not JSON at byte {path.read_text().index('nope')}: expected a value"
    assert lines[1]["excerpt"] == "nope"
    options.mask_policy = "fastchat"
    with pytest.raises(ValueError, match="--report_bad"):
        data.make_supervised_data_module(TOKENIZER, options)
    assert [json.loads(line)["action"] for line in report.read_text().splitlines()] == ["stopped"] * 2
