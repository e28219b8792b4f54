"""Read Parquet or Arrow from standard input and write the records as JSON lines, as a separate program.

A small file can decompress to gigabytes, and only a limit of the operating system keeps a library from
allocating that much. The program therefore runs with a memory limit. It does not read columns that no data
format uses, and writes the value 1 for them. The last line on standard error is the error message.
`sources/file_formats.py` starts the program.
"""

from __future__ import annotations

import io
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

from fastsft.sources.json_lines import without_fills, write_line

MEMORY_LIMIT = 3 << 29
FIELDS_VARIABLE = "FASTSFT_DATA_FIELDS"  # comma-separated names of columns that data formats use
STEMS_VARIABLE = "FASTSFT_MARK_STEMS"  # parts of the names of columns that may exclude a record from learning
REFUSED = 2  # exit status: the file is sound, and cannot be used
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_BATCH_BYTES, _MOST_ROWS_AT_ONCE = 1 << 23, 1024
# _ROWS_OF_A_BYTE: the most rows per byte of a file. _ALWAYS_ALLOWED: rows that a file of any size may have.
_ROWS_OF_A_BYTE, _ALWAYS_ALLOWED = 8, 1 << 20


class _RefusedError(ValueError):
    """A sound file cannot be used."""


def main() -> int:
    """Write the records, and return the exit status.

    After an error message on standard error it is REFUSED if the file is sound, else 1.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        _write_records()
    except MemoryError:
        size = f"{MEMORY_LIMIT >> 20} MiB"
        return _complain(
            f"unpacking it takes more than {size} of memory; write it as JSON lines, in smaller row groups",
            REFUSED,
        )
    except BrokenPipeError:
        os._exit(1)  # the output's reader has ended
    except _RefusedError as error:
        return _complain(str(error), REFUSED)
    except Exception as error:
        return _complain(" ".join(str(error).split())[:500] or type(error).__name__)
    return 0


def _write_records() -> None:
    import pyarrow

    pyarrow.set_cpu_count(1)
    start = sys.stdin.buffer.peek(4)[:4] if isinstance(sys.stdin.buffer, io.BufferedReader) else b""
    for batch, unread in _parquet_batches() if start == b"PAR1" else _arrow_batches(start):
        for record in batch.to_pylist():
            sys.stdout.buffer.write(write_line(without_fills({**record, **unread})))
    sys.stdout.buffer.flush()


def _parquet_batches() -> Iterator[tuple[Any, dict[str, int]]]:
    from pyarrow import parquet

    table = parquet.ParquetFile(sys.stdin.buffer, memory_map=False, pre_buffer=False)
    _check_rows(table.metadata.num_rows, os.fstat(0).st_size)
    columns, unread = _columns(table.schema_arrow)
    rows = _rows_at_once(table.metadata)
    for batch in table.iter_batches(batch_size=rows, columns=columns, use_threads=False):
        yield batch, unread


def _arrow_batches(start: bytes) -> Iterator[tuple[Any, dict[str, int]]]:
    """Yield the batches of an Arrow file (Feather) or an Arrow stream, and a value for each unread column.

    The library datasets saves Arrow streams.
    """
    from pyarrow import ipc

    if start != b"ARRO" and os.pread(0, 8, max(0, os.fstat(0).st_size - 8)) != _END_OF_STREAM:
        raise ValueError("the Arrow stream has no end: the file is cut")
    count = 0
    for batch in _file_batches(ipc) if start == b"ARRO" else ipc.open_stream(sys.stdin.buffer):
        count += batch.num_rows
        _check_rows(count, os.fstat(0).st_size)
        columns, unread = _columns(batch.schema)
        used = batch.select(columns)
        used.validate(full=True)
        mean = max(1, used.nbytes // max(1, batch.num_rows))
        rows = max(1, min(_MOST_ROWS_AT_ONCE, _BATCH_BYTES // mean))
        for first in range(0, batch.num_rows, rows):
            yield used.slice(first, rows), unread


def _file_batches(ipc: ModuleType) -> Iterator[Any]:
    file = ipc.open_file(sys.stdin.buffer)
    return (file.get_batch(number) for number in range(file.num_record_batches))


class _Schema(Protocol):
    """The members of pyarrow.Schema that this program uses."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def types(self) -> Sequence[object]: ...


class _RowGroup(Protocol):
    @property
    def total_byte_size(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


class _Metadata(Protocol):
    """The members of pyarrow.parquet.FileMetaData that this program uses."""

    @property
    def num_row_groups(self) -> int: ...
    def row_group(self, i: int, /) -> _RowGroup: ...


def _columns(schema: _Schema) -> tuple[list[str], dict[str, int]]:
    """Return the names of the columns to read, and the value 1 for each other column.

    A column is read if it is a data format's field or a list of structs. Also, a column is read if its
    name or the name of a field in it may exclude a record from learning.
    """
    fields = set(os.environ.get(FIELDS_VARIABLE, "").split(","))
    types = dict(zip(schema.names, schema.types, strict=True))
    used = [name for name, kind in types.items() if name in fields or _is_list_of_structs(kind)]
    if used:
        used += [name for name, kind in types.items() if name not in used and _may_mark(name, kind)]
    else:
        raise _RefusedError(
            f"expected columns of a data format, got {', '.join(types)[:200] or 'none'}; rename them, as in "
            "docs/data_files.md"
        )
    return used, {name: 1 for name in types if name not in used}


def _may_mark(name: str, kind: object) -> bool:
    stems = os.environ.get(STEMS_VARIABLE, "").split(",")
    text = (f"{name} {kind}" if str(kind).startswith("struct") else name).lower()
    return any(stem in text for stem in stems if stem)


def _is_list_of_structs(kind: object) -> bool:
    return "list" in str(kind).split("<")[0] and str(getattr(kind, "value_type", "")).startswith("struct")


def _check_rows(rows: int, size: int) -> None:
    most = max(_ALWAYS_ALLOWED, _ROWS_OF_A_BYTE * size)
    if rows > most:
        raise _RefusedError(
            f"{rows} rows in {size} bytes, at most {most} are read of so many; write it as JSON lines"
        )


def _rows_at_once(metadata: _Metadata) -> int:
    sizes = [metadata.row_group(i).total_byte_size for i in range(min(metadata.num_row_groups, 1000))]
    counts = [metadata.row_group(i).num_rows for i in range(len(sizes))]
    mean = max(1, sum(sizes) // max(1, sum(counts)))
    return max(1, min(_MOST_ROWS_AT_ONCE, _BATCH_BYTES // mean))


def _complain(text: str, status: int = 1) -> int:
    print(text, file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # ends the process without waiting for pyarrow's threads
