"""Reads a Parquet file from standard input and writes its records as JSON lines; a process of its own.

A few bytes of Parquet may unpack to gigabytes, and only the system can keep a library from taking them: this
process has a limit of memory. `sources/parquet_lines.py` is the other end. What is wrong is the last line of
standard error.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from fastsft.sources.json_lines import write_line

MEMORY_LIMIT = 3 << 29
_KNOWN = ("conversations", "messages", "id", "system", "train")
_BATCH_BYTES, _MOST_ROWS_AT_ONCE = 1 << 23, 1024
# A row takes some bits of a file, were it but for its length; so many are read in any case.
_ROWS_OF_A_BYTE, _ALWAYS_ALLOWED = 8, 1 << 20


def main() -> int:
    """The exit status: 0, or 1 with a line on standard error."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        _write_records()
    except MemoryError:
        size = f"{MEMORY_LIMIT >> 20} MiB"
        return _complain(
            f"unpacking it takes more than {size} of memory; write it as JSON lines, in smaller row groups"
        )
    except BrokenPipeError:
        os._exit(1)  # nobody reads any more
    except Exception as error:
        return _complain(" ".join(str(error).split())[:500] or type(error).__name__)
    return 0


def _write_records() -> None:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    pyarrow.set_cpu_count(1)
    table = parquet.ParquetFile(sys.stdin.buffer, memory_map=False, pre_buffer=False)
    _check_rows(table.metadata.num_rows, os.fstat(0).st_size)
    columns = [name for name in table.schema_arrow.names if name in _KNOWN]
    rows = _rows_at_once(table.metadata)
    for batch in table.iter_batches(batch_size=rows, columns=columns, use_threads=False):
        for record in batch.to_pylist():
            sys.stdout.buffer.write(write_line(record))
    sys.stdout.buffer.flush()


def _check_rows(rows: int, size: int) -> None:
    most = max(_ALWAYS_ALLOWED, _ROWS_OF_A_BYTE * size)
    if rows > most:
        raise ValueError(
            f"{rows} rows in {size} bytes, at most {most} are read of so many; write it as JSON lines"
        )


def _rows_at_once(metadata: Any) -> int:
    sizes = [metadata.row_group(i).total_byte_size for i in range(min(metadata.num_row_groups, 1000))]
    counts = [metadata.row_group(i).num_rows for i in range(len(sizes))]
    mean: int = max(1, sum(sizes) // max(1, sum(counts)))
    return max(1, min(_MOST_ROWS_AT_ONCE, _BATCH_BYTES // mean))


def _complain(text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the library's threads are not waited for
