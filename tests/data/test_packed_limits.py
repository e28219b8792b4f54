"""Packed files that expand without measure: refused in bounded memory, with the way out."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from bounded_child import label_bounded
from fastsft import _C
from fastsft.sources import file_formats as packed_files
from fastsft.sources import file_formats as table_lines
from fastsft.sources.data_files import DataFile
from fastsft.sources.file_formats import ExpansionLimit
from fastsft.sources.readers import open_input, open_reader

RECORD = {"id": "a", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}
FRONT, BACK = b'[{"conversations": [{"from": "human", "value": "', b'"}]}]'


def count(path: Path) -> int:
    return int(_C.count_data([open_input(DataFile(str(path)))]).num_records)


def write_zstandard(path: Path, parts: int, part: bytes) -> None:
    zstandard = pytest.importorskip("zstandard")
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as stream:
        stream.write(FRONT)
        for _ in range(parts):
            stream.write(part)
        stream.write(BACK)


def test_a_message_of_a_gigabyte_in_a_small_zstandard_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zst"
    write_zstandard(path, 1000, b"a" * 1_000_000)
    assert path.stat().st_size < 200_000
    outcome = label_bounded(path)
    assert "bomb.zst: record 0 has" in outcome.said and "--max_record_bytes" in outcome.said
    assert outcome.peak - outcome.start < 1 << 20


def test_a_message_of_a_gigabyte_in_a_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(FRONT)
        for _ in range(200):
            file.write(b"a" * 1_000_000)
        file.write(BACK)
    outcome = label_bounded(path)
    assert "bomb.gz: record 0 has" in outcome.said
    assert outcome.peak - outcome.start < 1 << 20


def test_blank_lines_without_end_have_a_ratio(tmp_path: Path) -> None:
    """No record is too long; what comes of how much is."""
    path = tmp_path / "bomb.zst"
    zstandard = pytest.importorskip("zstandard")
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as stream:
        stream.write(json.dumps(RECORD).encode() + b"\n")
        for _ in range(400):
            stream.write((b" " * 99 + b"\n") * 10_000)
    with pytest.raises(
        ValueError, match=r"bomb\.zst: \d+ bytes expand to \d+ and more, over 2000 times .* unpack"
    ):
        count(path)


def test_the_ratio_lets_usual_and_small_files_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = ExpansionLimit("name", lambda: 1000)
    limit.count(packed_files.ALWAYS_ALLOWED)
    with pytest.raises(ValueError, match="name: 1000 bytes expand"):
        limit.count(1)
    monkeypatch.setattr(packed_files, "ALWAYS_ALLOWED", 0)
    line = json.dumps(RECORD).encode() + b"\n"
    stream = packed_files.GzipStream(io.BytesIO(gzip.compress(line * 100_000)), "name")  # type: ignore[arg-type]
    assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) == len(line) * 100_000


def test_a_window_that_takes_all_memory_is_refused(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "wide.zst"
    path.write_bytes(packer.compress(json.dumps(RECORD).encode() + b"\n") + packer.flush())
    with pytest.raises(ValueError, match=r"wide\.zst: cannot be unpacked.*too much memory"):
        count(path)


def test_small_reads_of_a_large_block(tmp_path: Path) -> None:
    path = tmp_path / "d.zst"
    write_zstandard(path, 30, b"a" * 1_000_000)
    read = open_reader(DataFile(str(path)))
    assert b"".join(iter(lambda: read(100_000), b"")) == FRONT + b"a" * 30_000_000 + BACK


def write_parquet(path: Path, table: object, **options: object) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table, path, **options)


def test_one_text_that_many_rows_repeat(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    text = "a" * 4_000_000
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 1500, pyarrow.int32()), pyarrow.array([text])
    )
    path = tmp_path / "bomb.parquet"
    write_parquet(path, pyarrow.table({"system": column}), compression="zstd")
    assert path.stat().st_size < 50_000
    outcome = label_bounded(path)
    assert outcome.said.startswith("ValueError: ") and "bomb.parquet" in outcome.said
    assert max(outcome.peak - outcome.start, outcome.children) < 2 << 20


def test_fifty_million_rows_of_nothing(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "nulls.parquet"
    table = pyarrow.table({"messages": pyarrow.nulls(50_000_000)})
    write_parquet(path, table, compression="zstd", row_group_size=1 << 26)
    with pytest.raises(ValueError, match=r"nulls\.parquet: 50000000 rows in \d+ bytes, at most"):
        count(path)


def test_rows_and_lists_arrive_as_they_are(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "d.parquet"
    records = [{**RECORD, "id": str(i), "system": None if i % 2 else "\u00e9" * i} for i in range(3000)]
    write_parquet(path, pyarrow.Table.from_pylist(records), row_group_size=700)
    read = open_reader(DataFile(str(path)))
    lines = b"".join(iter(lambda: read(10_000), b"")).splitlines()
    assert [json.loads(line) for line in lines] == records


def test_parquet_in_a_pipe_is_refused(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(ValueError, match="name: Parquet and Arrow cannot be read from a pipe"):
        table_lines.TableLines(Pipe(b"PAR1"), "name")
