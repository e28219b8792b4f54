"""Where conversations come from: files by path, weight and content, and records of Python objects."""

from __future__ import annotations

import glob
import gzip
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

_WEIGHT = re.compile(r"(.+):(\d+(?:\.\d*)?|\.\d+)")
_STANDARD_INPUT = "-"
_BATCH = 1 << 16
_PACKED_BLOCK = 1 << 12  # Zstandard unpacks it to 128 MiB at most


@dataclass(frozen=True)
class DataFile:
    """One file of a data set. `weight`: 0.5 takes half of its records, 2 takes each of them twice."""

    path: str
    weight: float = 1.0

    @property
    def is_stream(self) -> bool:
        """It can be read once only: standard input or a pipe."""
        return self.path == _STANDARD_INPUT or not os.path.isfile(self.path)


def data_files(spec: str) -> list[DataFile]:
    """The files that `--data_path` names: `a.json,b.jsonl:0.5`, `data/*.jsonl`, `-` for standard input.

    Items stand between commas; `:0.5` behind one is its weight; a pattern stands for the files that it
    matches, in order of name. A file whose name is the whole item is taken as it is. ValueError for what does
    not exist.
    """
    if os.path.exists(spec) and not os.path.isdir(spec):
        return [DataFile(spec)]
    files = [file for item in spec.split(",") for file in _expand(item.strip())]
    if sum(file.path == _STANDARD_INPUT for file in files) > 1:
        raise ValueError("standard input (-) is named twice; it can be read once")
    return files


def _expand(item: str) -> Iterator[DataFile]:
    path, weight = item, 1.0
    match = _WEIGHT.fullmatch(item)
    if match and not os.path.exists(item):
        path, weight = match[1], float(match[2])
        if not 0 < weight <= 1000:
            raise ValueError(f"{item}: the weight of a data file must lie above 0 and be at most 1000")
    if path == _STANDARD_INPUT or os.path.exists(path):
        found = [path]
    else:
        found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise ValueError(f"{path} is not a file, and no file's name matches it")
    for each in found:
        if os.path.isdir(each):
            raise ValueError(f"{each} is a directory; name its files: {each.rstrip('/')}/*.jsonl")
        yield DataFile(each, weight)


def open_input(file: DataFile, watch: Callable[[bytes], None] | None = None) -> Any:
    """The native input (_C.DataInput) of a file; its format is known by its first bytes, not by its name.

    JSON is read natively; gzip, Zstandard (package zstandard) and Parquet (package pyarrow) by their
    libraries. `watch` is given all bytes of a stream, for a hash of what can be read only once.
    """
    from fastsft import _C

    if not file.is_stream:
        with open(file.path, "rb") as opened:
            if not _is_packed(opened.read(4)):
                return _C.DataInput(file.path, file.path, file.weight)
    return _C.DataInput(_name(file), open_reader(file, watch), file.weight)


def open_reader(file: DataFile, watch: Callable[[bytes], None] | None = None) -> Callable[[int], bytes]:
    """`read(size)` of the JSON in a file, unpacked; of Parquet, the records as lines."""
    raw: BinaryIO = sys.stdin.buffer if file.path == _STANDARD_INPUT else open(file.path, "rb")  # noqa: SIM115
    start = raw.peek(4)[:4] if isinstance(raw, io.BufferedReader) else b""
    if start == b"PAR1":
        return _guarded(JsonLines(_parquet_records(raw, file)), _name(file), watch)
    stream: Any = raw
    if start[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=raw)
    elif _is_zstandard(start):
        zstandard = _optional("zstandard", file, "Zstandard", "zstd")
        stream = _ZstandardFrames(raw, zstandard.ZstdDecompressor().decompressobj)
    return _guarded(stream, _name(file), watch)


class JsonLines:
    """Records of Python objects as one JSON line each, read in blocks.

    What is no JSON value counts as a number: truthy, and not a text. Lone surrogates are written as escapes.
    """

    def __init__(self, records: Iterable[Any]) -> None:
        self._records = iter(records)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        parts, length = [self._waiting], len(self._waiting)
        while length < size:
            record = next(self._records, self)
            if record is self:
                break
            parts.append(write_line(record))
            length += len(parts[-1])
        block = b"".join(parts)
        self._waiting = block[size:]
        return block[:size]


class JsonArray:
    """As JsonLines, but one array, in which a record may be any value; without records an empty one."""

    def __init__(self, records: Iterable[Any]) -> None:
        self._chunks = self._write(records)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while len(self._waiting) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._waiting += chunk
        block, self._waiting = self._waiting[:size], self._waiting[size:]
        return block

    @staticmethod
    def _write(records: Iterable[Any]) -> Iterator[bytes]:
        yield b"["
        for number, record in enumerate(records):
            yield (b"," if number else b"") + write_line(record)
        yield b"]"


class _ZstandardFrames:
    """Unpacks frames one behind the other. The library's own reader ends a cut file without a word."""

    def __init__(self, raw: BinaryIO, begin_frame: Callable[[], Any]) -> None:
        self._raw, self._begin_frame = raw, begin_frame
        self._frame = begin_frame()
        self._waiting = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. EOFError where the file ends inside a frame."""
        while not self._waiting:
            packed = (self._frame.unused_data if self._frame.eof else b"") or self._raw.read(_PACKED_BLOCK)
            if not packed:
                if self._frame.eof:
                    return b""
                raise EOFError("it ends inside a Zstandard frame")
            if self._frame.eof:
                self._frame = self._begin_frame()
            self._waiting = self._frame.decompress(packed)
        block, self._waiting = self._waiting[:size], self._waiting[size:]
        return block


def write_line(record: Any) -> bytes:
    """A record as a JSON line."""
    text = json.dumps(record, skipkeys=True, default=lambda _: 1, ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, skipkeys=True, default=lambda _: 1).encode() + b"\n"


def read_records(files: Iterable[DataFile]) -> list[Any]:
    """All records of files as Python objects, each as often as its file's weight says."""
    from fastsft import _C

    records = []
    for file in files:
        read = open_reader(file)
        text = b"".join(iter(partial(read, 1 << 20), b"")).decode("utf-8-sig")
        if text.lstrip(" \n\t\r")[:1] == "[":
            found = json.loads(text)
        else:
            found = [json.loads(line) for line in text.split("\n") if line.strip(" \t\r")]
        for number, record in enumerate(found):
            records.extend([record] * _C.copies_of_record(file.weight, number))
    return records


def _name(file: DataFile) -> str:
    return "standard input" if file.path == _STANDARD_INPUT else file.path


def _is_packed(start: bytes) -> bool:
    return start[:2] == b"\x1f\x8b" or start == b"PAR1" or _is_zstandard(start)


def _is_zstandard(start: bytes) -> bool:
    """A frame, or one to be skipped, as pzstd writes it in front."""
    return start == b"\x28\xb5\x2f\xfd" or (start[1:] == b"\x2a\x4d\x18" and start[0] >> 4 == 5)


def _guarded(stream: Any, name: str, watch: Callable[[bytes], None] | None) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        try:
            block: bytes = stream.read(size)
        except (OSError, EOFError) as error:
            raise ValueError(f"{name}: cannot be unpacked to its end: {error}") from None
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("zlib", "zstandard", "pyarrow"):
                raise
            raise ValueError(f"{name}: cannot be unpacked to its end: {error}") from None
        if watch:
            watch(block)
        return block

    return read


def _parquet_records(raw: BinaryIO, file: DataFile) -> Iterator[Any]:
    parquet = _optional("pyarrow.parquet", file, "Parquet", "parquet")
    table = parquet.ParquetFile(raw)
    known = {"conversations", "messages", "id", "system", "train"}
    columns = [name for name in table.schema_arrow.names if name in known]
    for batch in table.iter_batches(batch_size=_BATCH // 64, columns=columns):
        yield from batch.to_pylist()


def _optional(module: str, file: DataFile, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise ValueError(
            f"{_name(file)} is {what}, which needs the package {package}: pip install fastsft[{extra}], "
            "or unpack it first"
        ) from None
