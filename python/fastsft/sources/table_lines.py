"""The records of a Parquet or Arrow file as JSON lines, read by a process with a limit of memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import BinaryIO

from fastsft.runtime.isolated_python import isolated_command, isolated_environment
from fastsft.sources.packed_files import ExpansionLimit
from fastsft.sources.table_program import FIELDS_VARIABLE, STEMS_VARIABLE

# Fields by which the core knows preference data, which it refuses.
_OF_PREFERENCE = ("chosen", "rejected", "label")
# Threads and reserves of the library count as memory.
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
          "ARROW_IO_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # fmt: skip


def is_table(start: bytes) -> bool:
    """The first four bytes are those of Parquet, or of Arrow as a stream (as `datasets` saves) or a file."""
    return start in (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")


class TableLines:
    """Starts the process with the first read. `raw`: the file, seekable. ValueError without pyarrow."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        if not raw.seekable():
            raise ValueError(
                f"{name}: Parquet and Arrow cannot be read from a pipe, which has no way back; name the file"
            )
        self._raw, self._name = raw, name
        self._command = isolated_command("fastsft.sources.table_program", ("pyarrow", "numpy"))
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        size = os.fstat(raw.fileno()).st_size
        self._limit = ExpansionLimit(name, lambda: size)

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end. OSError with the library's words for a damaged file."""
        process = self._process or self._start()
        assert process.stdout is not None
        block = process.stdout.read(size)
        if not block and process.wait() != 0:
            raise OSError(self._complaint(process.returncode))
        try:
            self._limit.count(len(block))
        except ValueError:
            self.close()
            raise
        return block

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        os.lseek(self._raw.fileno(), 0, os.SEEK_SET)  # a peek has moved the position
        self._process = subprocess.Popen(
            self._command, stdin=self._raw, stdout=subprocess.PIPE, stderr=self._said,
            env={**isolated_environment(), **_SMALL, **_fields()},
        )  # fmt: skip
        return self._process

    def _complaint(self, status: int) -> str:
        self._said.seek(0)
        lines = self._said.read(1 << 16).decode("utf-8", "replace").splitlines()
        if status < 0:
            return f"its reader was ended by signal {-status}, as for lack of memory"
        return lines[-1] if lines else f"its reader ended with status {status}"


def _fields() -> dict[str, str]:
    """Fields that some data format uses, or refuses, and parts of those that may say what is learned."""
    from fastsft import _C

    formats = [_C.find_data_format(name) for name in _C.data_formats()]
    names = {"id", *_OF_PREFERENCE, *(name for each in formats for name in each.names)}
    return {FIELDS_VARIABLE: ",".join(sorted(names)), STEMS_VARIABLE: ",".join(_C.train_mark_stems())}
