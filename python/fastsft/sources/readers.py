"""Open data files of any format for the native reader, or read their records as Python objects."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fastsft.runtime.regular_files import check_no_pointer, open_descriptor, open_regular
from fastsft.runtime.ways_out import reading_advice
from fastsft.sources.file_formats import (
    CsvLines,
    GzipStream,
    Stream,
    TableLines,
    ZstandardStream,
    is_csv_name,
    is_table,
)

if TYPE_CHECKING:
    from fastsft import _C


import select
import stat
import time

from fastsft.runtime.messages import tell
from fastsft.sources.data_files import _STANDARD_INPUT, DataFile

SECONDS_UNTIL_TOLD = 2.0
SECONDS_TO_WAIT = 20.0


def open_data(path: str) -> BinaryIO:
    """Open a data file for reading: a regular file, a pipe or a device.

    For a pipe, wait until another program writes to it. ValueError if no program does so within
    SECONDS_TO_WAIT, or if the file cannot be opened.
    """
    descriptor = open_descriptor(path, "the data file cannot be read")
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _await_writer(descriptor, path)
        os.set_blocking(descriptor, True)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            check_no_pointer(descriptor, path, "data")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _await_writer(descriptor: int, path: str) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    end, has_told = time.monotonic() + SECONDS_TO_WAIT, False
    while not poll.poll(1000 * (SECONDS_UNTIL_TOLD if not has_told else 1.0)):
        if not has_told:
            tell(f"{path} is a pipe: waiting for somebody to write to it")
            has_told = True
        if time.monotonic() > end:
            raise ValueError(
                f"{path}: expected data, got a pipe to which nobody has written for {SECONDS_TO_WAIT:g} s; "
                "start the program that writes to it first"
            )


# Keys that may hold a record's the text to learn in place of the messages. Inside a JSON string the quotes
# would be escaped, so a mention in a message does not match.
_DOUBTFUL = re.compile(rb'"(completion|response|output|answer|target|chosen|rejected|label)"\s*:')


def as_sharegpt(data: bytes, name: str, data_format: str = "auto") -> bytes:
    """Convert the records of a data file to FastChat's format (ShareGPT), as a JSON array.

    Records that already have this format are returned unchanged. data: the file's content. name: the file's
    name, for messages. ValueError if records cannot be read, and for the format text, which has no
    conversations. Invalid JSON is returned unchanged, because the caller reports the error when it parses
    the JSON.
    """
    from fastsft import _C

    try:
        detected = _C.detect_data_format(_C.DataInput(name, io.BytesIO(data).read, data_format=data_format))
    except (ValueError, RuntimeError):
        return data
    if detected == ("sharegpt", ""):
        if data_format == "auto" and _DOUBTFUL.search(data):
            _check_clear(data, name)
        return data
    if detected[0] == "text":
        raise ValueError(f"{name}: records of text have no conversations that a script could read")
    parts: list[bytes] = []
    source = _C.DataInput(name, io.BytesIO(data).read, data_format=data_format)
    summary = _C.convert_inputs([source], "sharegpt", True, parts.append, lambda _: None)
    if summary.num_faults:
        raise ValueError(
            f"{name}: {summary.num_faults:,} records cannot be read as conversations: {summary.faults[0]}; "
            "fastsft data convert --on_bad_sample skip writes the others"
        )
    return b"".join(parts)


def _check_clear(data: bytes, name: str) -> None:
    """Raise ValueError if a record may hold the text to learn in another field than its messages."""
    from fastsft import _C

    try:
        summary = _C.convert_inputs(
            [_C.DataInput(name, io.BytesIO(data).read)], "sharegpt", True, lambda _: None, lambda _: None
        )
    except (ValueError, RuntimeError):
        return  # the caller reports the error when it parses the data
    doubts = ("other_format", "bad_field")
    fault = next((fault for fault in summary.faults if fault.remark in doubts), None)
    if fault is not None:
        raise ValueError(f"{name}: {fault}")


UNCONVERTED = "sharegpt"  # the data format into which records of other formats are converted
MAX_RECORD_BYTES = 1 << 26  # the default of --max_record_bytes
_NAME_OF_LINES = re.compile(r"\.(jsonl|ndjson|csv|tsv)(\.(gz|zst))?$", re.IGNORECASE)


def check_data_format(name: str) -> None:
    """Raise ValueError, which lists the data formats, unless `name` is a data format or "auto"."""
    from fastsft import _C

    names = ["auto", *_C.data_formats()]
    if name not in names:
        raise ValueError(f"--data_format: expected one of {', '.join(names)}, got {name!r}")


def open_input(
    file: DataFile,
    watch: Callable[[bytes], None] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    data_format: str = "auto",
) -> _C.DataInput:
    """Return the native reader's input object for a data file.

    The file format is recognised by the first bytes, and CSV by the file name. The C++ core reads JSON.
    Python libraries read the other formats: zstandard for Zstandard, pyarrow for Parquet and Arrow, and the
    standard library for gzip and CSV.

    watch: called with each block that is read, to hash input that can be read only once. max_record_bytes:
    the most bytes of a record. data_format: the records' format, or "auto".
    """
    from fastsft import _C

    limit = min(max_record_bytes, (1 << 32) - 1)
    start = b"" if file.is_stream else _first_bytes(file.path)
    _check_name(file, start)
    if not file.is_stream and not _is_converted(file.path, start):
        return _C.DataInput(file.path, file.path, file.weight, limit, data_format)
    read = open_reader(file, watch, limit)
    return _C.DataInput(_name(file), read, file.weight, limit, data_format)


def _check_name(file: DataFile, start: bytes) -> None:
    """Raise ValueError for a file that is a table by its name alone. start: its first four bytes, or b""."""
    kind = Path(file.path).suffix
    if kind in (".parquet", ".arrow") and start and not is_table(start):
        raise ValueError(
            f"{_name(file)}: expected {kind[1:].title()}, as its name says, got {start!r} at its start; copy "
            "or download it again, or give it the name of what it is"
        )


def open_reader(
    file: DataFile, watch: Callable[[bytes], None] | None = None, limit: int = MAX_RECORD_BYTES
) -> Callable[[int], bytes]:
    """Return a function `read(size)` that returns a file's unpacked JSON in blocks.

    Rows of Parquet, Arrow and CSV become JSON lines. watch: as in `open_input`. limit: the most characters of
    a CSV row. The limit is needed because the reader of JSON lines sees a row only after it is in memory.
    """
    raw: BinaryIO = sys.stdin.buffer if file.path == _STANDARD_INPUT else open_data(file.path)
    start = raw.peek(4)[:4] if isinstance(raw, io.BufferedReader) else b""
    _check_name(file, start)
    stream: Stream = raw
    if is_table(start):
        _check_installed("pyarrow", file, "Parquet" if start == b"PAR1" else "Arrow")
        stream = TableLines(raw, _name(file))
    elif start[:2] == b"\x1f\x8b":
        stream = GzipStream(raw, _name(file))
    elif _is_zstandard(start):
        _check_installed("zstandard", file, "Zstandard")
        stream = ZstandardStream(raw, _name(file))
    if _is_csv(file.path, start):
        stream = CsvLines(stream, _name(file), limit)
    return _guarded(stream, _name(file), watch)


def read_records(
    files: Iterable[DataFile], max_record_bytes: int = MAX_RECORD_BYTES, data_format: str = "auto"
) -> list[Any]:
    """Return all records as Python objects, each repeated or left out according to its file's weight.

    Records of other data formats are converted to ShareGPT records. ValueError, with the file name, if the
    JSON is invalid or a record has more than `max_record_bytes` bytes.
    """
    from fastsft import _C

    records = []
    for file in files:
        for number, record in enumerate(_parsed(file, max_record_bytes, data_format)):
            records.extend([record] * _C.copies_of_record(file.weight, number))
    return records


def read_content(files: Sequence[DataFile], max_record_bytes: int = MAX_RECORD_BYTES) -> Any:
    """Return the data as json.load would return it, for dataset classes of scripts.

    A single file of weight 1 that is a JSON object as a whole gives that object. All other data gives a list
    of records. ValueError as in `read_records`.
    """
    if len(files) == 1 and files[0].weight == 1:
        may_be_object = not _NAME_OF_LINES.search(files[0].path)
        return _parsed(files[0], max_record_bytes, UNCONVERTED, may_be_object=may_be_object)
    return read_records(files, max_record_bytes, UNCONVERTED)


def _parsed(file: DataFile, limit: int, data_format: str, *, may_be_object: bool = False) -> Any:
    """Return a file's records.

    may_be_object: return the JSON object itself if the whole file is a JSON object.
    """
    read = open_reader(file, limit=limit)
    try:
        data = b"".join(iter(partial(read, 1 << 20), b""))
        text = as_sharegpt(data, _name(file), data_format).decode("utf-8-sig")
        whole = _object(text) if may_be_object else None
        if whole is not None:
            return whole
        if text.lstrip(" \n\t\r")[:1] == "[":
            records: list[Any] = json.loads(text)
        else:
            records = [json.loads(line) for line in text.split("\n") if line.strip(" \t\r")]
    except RecursionError:
        raise ValueError(f"{_name(file)}: not JSON that can be used: nested too deep; flatten it") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{_name(file)}: invalid UTF-8 at byte {error.start}; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{_name(file)}: not JSON: {error}") from None
    if len(text) > limit:
        for number, record in enumerate(records):
            _check_record(record, f"{_name(file)}: record {number}", limit)
    return records


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that makes up the whole text; None for an array or JSON lines."""
    if text.lstrip(" \n\t\r")[:1] != "{":
        return None
    try:
        content: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None
    return content


def _check_record(record: object, where: str, limit: int) -> None:
    size = len(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > limit:
        raise ValueError(
            f"{where} has {size} bytes; a record may have {limit} (--max_record_bytes): allow more, or "
            "divide it"
        )


def _name(file: DataFile) -> str:
    return "standard input" if file.path == _STANDARD_INPUT else file.path


def _first_bytes(path: str) -> bytes:
    with open_regular(path, "a data file") as opened:
        try:
            start = opened.read(4)
        except OSError as error:  # an error of `read` does not name the file
            reason = f"{error.strerror}{reading_advice(error)}"
            raise ValueError(f"{path}: the data file cannot be read: {reason}") from None
    if start is None:
        raise ValueError(f"{path}: the data file cannot be read: it has nothing to read yet; name a file")
    return start


def _is_converted(path: str, start: bytes) -> bool:
    """True if the native reader cannot read a file directly. start: the file's first four bytes."""
    return start[:2] == b"\x1f\x8b" or is_table(start) or _is_zstandard(start) or _is_csv(path, start)


def _is_csv(path: str, start: bytes) -> bool:
    """True if the file has the name of a CSV file and does not begin like JSON, a table, or binary."""
    return (
        is_csv_name(path) and start[:1] not in (b"[", b"{") and not is_table(start) and not _is_binary(start)
    )


def _is_binary(start: bytes) -> bool:
    """True if a file is neither text nor compressed. The native reader names its format, such as ZIP."""
    if start.startswith((b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff")) or _is_zstandard(start):
        return False
    return start.startswith((b"%PDF", b"\x89PNG", b"\xff\xd8\xff")) or any(
        byte < 9 or 13 < byte < 32 for byte in start
    )


def _is_zstandard(start: bytes) -> bool:
    """True if a file begins with a Zstandard frame, or with a skippable frame, which pzstd writes first.

    start: the file's first four bytes.
    """
    return start == b"\x28\xb5\x2f\xfd" or (start[1:] == b"\x2a\x4d\x18" and start[0] >> 4 == 5)


def _guarded(stream: Stream, name: str, watch: Callable[[bytes], None] | None) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        try:
            block = stream.read(size)
        except (OSError, EOFError) as error:
            raise ValueError(
                f"{name}: cannot be unpacked to its end: {error}; copy or download it again"
            ) from None
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("zlib", "zstandard", "pyarrow"):
                raise
            raise ValueError(
                f"{name}: cannot be unpacked to its end: {error}; copy or download it again"
            ) from None
        if watch:
            watch(block)
        return block

    return read


def _check_installed(package: str, file: DataFile, what: str) -> None:
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # raised if the package's module in sys.modules has no __spec__
        spec = None
    if spec is None:
        raise ValueError(
            f"{_name(file)} is {what}, which needs the package {package}: pip install {package}, or unpack "
            "it first"
        )
