"""The process in which the `tokenizers` library runs a file that fastsft has no native equal of.

A request is a letter, a size (8 bytes) and that many bytes; so is an answer: + with what was asked, - with
why not.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from array import array
from collections.abc import Sequence
from typing import Any

from fastsft.runtime.isolated_python import isolated_command, isolated_environment
from fastsft.tokenizer.library_program import BYTES_A_SECOND, HEAD, LOAD_SECONDS, MEMORY_LIMIT, TEXT_SECONDS

# Processor time is what is limited; this much later on the clock the process counts as stuck.
_PATIENCE = 20.0
_BLOCK = 1 << 16


class LibraryProcess:
    """Starts with the first request, and once more after a fork and after its end.

    job: the file's text and the tokens added to it (`library_program.Library`). where: begins messages.
    Requests of several threads wait for each other. ValueError for what the library refuses or does not
    finish.
    """

    def __init__(self, job: dict[str, Any], where: str) -> None:
        self._job, self._where = json.dumps(job).encode(), where
        self._command = isolated_command("fastsft.tokenizer.library_program", ("tokenizers",))
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._lock = os.getpid(), threading.Lock()
        self.hello: dict[str, Any] = {}
        with self._lock:
            self._start()

    def encode(self, text: str, as_plain: bool) -> list[tuple[int, int, int]]:
        """Id, first byte and end of each token."""
        flat = array("I", self._ask(b"P" if as_plain else b"E", text.encode()))
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ids."""
        answer = self._ask(b"S" if skip_special_tokens else b"D", array("I", ids).tobytes())
        return answer.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """End the process; a later request starts another one."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def _ask(self, kind: bytes, payload: bytes) -> bytes:
        if self._owner != os.getpid():  # after a fork the process is the parent's
            self._owner, self._lock, self._process = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(kind, payload, TEXT_SECONDS + len(payload) / BYTES_A_SECOND)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**isolated_environment(), "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2"},
            bufsize=0,
        )  # fmt: skip
        self.hello = json.loads(self._exchange(b"L", self._job, LOAD_SECONDS))

    def _exchange(self, kind: bytes, payload: bytes, seconds: float) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        end = time.monotonic() + 4 * seconds + _PATIENCE
        try:
            _write(process.stdin.fileno(), HEAD.pack(kind, len(payload)) + payload, end)
            status, size = HEAD.unpack(_read(process.stdout.fileno(), HEAD.size, end))
            answer = _read(process.stdout.fileno(), size, end)
        except (OSError, EOFError, TimeoutError):
            raise ValueError(self._told(self._end_of(process, seconds), kind, payload)) from None
        except BaseException:
            self.close()  # its next answer would be taken for another request's
            raise
        if status != b"+":
            if kind == b"L":
                self.close()
            raise ValueError(self._told(f"refuses it: {answer.decode('utf-8', 'replace')}", kind, payload))
        return answer

    def _told(self, what: str, kind: bytes, payload: bytes) -> str:
        if kind == b"L":
            return f"{self._where}: the tokenizers library {what}"
        return f"{self._where}: the tokenizers library {what} [a text of {len(payload)} bytes]"

    def _end_of(self, process: subprocess.Popen[bytes], seconds: float) -> str:
        try:
            status = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        if status is None or status == -27:  # SIGPROF
            return f"takes more than {seconds:g} s for it; such a pattern or normalizer may never end"
        return f"ended with status {status}, as with more than {MEMORY_LIMIT >> 20} MiB of memory"


def _write(descriptor: int, data: bytes, end: float) -> None:
    left = memoryview(data)
    while left:
        if not select.select([], [descriptor], [], max(0.0, end - time.monotonic()))[1]:
            raise TimeoutError
        left = left[os.write(descriptor, left[:_BLOCK]) :]


def _read(descriptor: int, size: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(descriptor, min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
