"""Read small untrusted files, after a check that each is a regular file of bounded size."""

from __future__ import annotations

import json
import os
import stat
import sys
from io import BufferedReader
from pathlib import Path
from typing import Any

from fastsft.runtime.near_names import missing_hint
from fastsft.runtime.ways_out import reading_advice

MOST_CONFIG_BYTES = 16 << 20  # config.json, tokenizer_config.json, an index of weights, a chat template
MOST_TOKENIZER_BYTES = 256 << 20  # tokenizer.json; the native reader has the same limit
_POINTER, _MOST_OF_POINTER = b"version https://git-lfs.github.com/spec/", 1024
_PUT_THERE = "copy or download the file to this place, or name another"
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


def read_regular(path: str | Path, max_bytes: int = MOST_CONFIG_BYTES, what: str = "a regular file") -> bytes:
    """Read a regular file. Links are followed. A FIFO is refused without waiting for its writer.

    what: the expected kind of file, for the message ("a chat template"). ValueError, with the path, if the
    file is not regular, is larger than `max_bytes`, or cannot be read.
    """
    with open_regular(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    size = max(size, len(content))
    if size > max_bytes:
        raise ValueError(
            f"{path}: expected {what} of at most {max_bytes} bytes, got {size}; is it another file under "
            "this name? Copy or download it again"
        )
    return content


def open_regular(path: str | Path, what: str = "a regular file") -> BufferedReader:
    """Open a regular file for reading.

    ValueError if the file is not regular, cannot be read, or is a Git LFS pointer.
    """
    descriptor = open_descriptor(path, f"expected {what}, cannot be read")
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path}: expected {what}, got {kind_of(mode)}; {_PUT_THERE}")
        check_no_pointer(descriptor, path, what)
    except ValueError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def open_descriptor(path: str | Path, problem: str) -> int:
    """Open any file for reading, without waiting for the writer of a FIFO.

    problem: text for the ValueError's message if the file cannot be opened.
    """
    try:
        # This raises OSError for a socket and for a missing file.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {problem}: {_reason(error)}{_way_out(path, error)}") from None


def _way_out(path: str | Path, error: Exception) -> str:
    is_missing = isinstance(error, FileNotFoundError) and not os.path.lexists(path)
    return missing_hint(path) if is_missing else reading_advice(error)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def check_no_pointer(descriptor: int, path: str | Path, what: str = "a regular file") -> None:
    """Raise ValueError if a regular file is a Git LFS pointer. descriptor: the open file.

    A repository that was cloned without Git LFS has such small text files in place of its large files.
    """
    is_small = os.fstat(descriptor).st_size <= _MOST_OF_POINTER
    try:
        start = os.pread(descriptor, len(_POINTER), 0) if is_small else b""
    except OSError:
        return  # the caller reports the error when it reads the file
    if start == _POINTER:
        raise ValueError(
            f"{path}: expected {what}, got a Git-LFS pointer, in the place of the file itself; run `git lfs "
            "pull` in its directory, or download the file"
        )


def check_regular(path: str | Path, what: str = "a regular file") -> None:
    """Raise ValueError if `path` is not a regular file, is missing, or is a Git LFS pointer.

    Used for files that another library will read.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = f"{_reason(error)}{_way_out(path, error)}"
        raise ValueError(f"{path}: expected {what}, cannot be read: {reason}") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: expected {what}, got {kind_of(mode)}; {_PUT_THERE}")
    if os.access(path, os.R_OK):
        open_regular(path, what).close()


def file_inside(directory: str | Path, name: str) -> Path | None:
    """Return the path of the file `name` in a model directory; None if there is no such file.

    name: may contain folders. A link may lead to a file inside the directory or, in the Hugging Face cache,
    into the `blobs` of the same repository. ValueError for any other link, and for a link to a missing file.
    """
    from fastsft import _C

    path = Path(directory) / name
    if not os.path.lexists(path):
        return None
    check_name(path, "a file of a model")
    inside = Path(_C.nested_path_inside(str(directory), name, str(directory)))
    if not inside.exists():
        raise ValueError(
            f"{path}: a link that leads nowhere, to {ascii(os.readlink(path))[1:-1]}; copy the file"
        )
    return inside


def check_name(path: str | Path, what: str) -> None:
    """Raise ValueError if a path is not UTF-8, as the C++ core requires. what: begins the message."""
    text = os.fspath(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        if _is_read_wrongly(text):
            raise ValueError(
                f"{what}: expected a locale of UTF-8 for this path, got {sys.getfilesystemencoding()} and "
                f"{text!a}; set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
            ) from None
        raise ValueError(f"{what}: expected a path in UTF-8, got {text!a}; rename what is not") from None


def _is_read_wrongly(text: str) -> bool:
    """True if the path's bytes are UTF-8, but Python decoded them with another encoding."""
    try:
        os.fsencode(text).decode()
    except UnicodeError:
        return False
    return True


def kind_of(mode: int) -> str:
    """Return the name, for messages, of an irregular file's kind. mode: the file's st_mode."""
    return next((name for test, name in _KINDS if test(mode)), "a device")


def read_text(
    path: str | Path,
    max_bytes: int = MOST_CONFIG_BYTES,
    what: str = "a text file",
    *,
    of_user: bool = False,
) -> str:
    """Read a regular file as UTF-8, and convert its line breaks to \\n.

    of_user: a user may have written the file, so a byte order mark, which some editors add, is dropped.
    ValueError as in `read_regular`, and if the file is not UTF-8.
    """
    content = read_regular(path, max_bytes, what)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        other = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        raise ValueError(
            f"{path}: expected {what} in UTF-8: {error.reason} at byte {error.start}; iconv -f {other} "
            f"-t UTF-8 makes UTF-8 of {other}"
        ) from None
    text = text.removeprefix("\ufeff") if of_user else text
    return text.replace("\r\n", "\n").replace("\r", "\n")


_AGAIN = "; copy or download it again"


def read_json(path: str | Path, max_bytes: int = MOST_CONFIG_BYTES, *, of_user: bool = False) -> Any:
    """Read the value of a JSON file. of_user: see `read_text`.

    ValueError as in `read_text`, if the JSON is invalid or nested too deeply, and if a string has a lone
    surrogate.
    """
    text = read_text(path, max_bytes, "a JSON file", of_user=of_user)
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(f"{path}: expected a JSON object, this is nested too deep{_AGAIN}") from None
    except ValueError as error:
        reason = f"not JSON: {error}" if text.strip() else "the file is empty"
        way = (
            _AGAIN if not of_user else "; correct it there" if text.strip() else "; write it, or name another"
        )
        raise ValueError(f"{path}: expected a JSON object: {reason}{way}") from None
    if "\\ud" in text.lower():
        _check_texts(content, str(path))
    return content


def read_json_object(path: str | Path, max_bytes: int = MOST_CONFIG_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file. ValueError as in `read_json`, and if the value is not an object."""
    content = read_json(path, max_bytes)
    if not isinstance(content, dict):
        got = type(content).__name__
        raise ValueError(f"{path}: expected a JSON object, got {got}; copy or download it again")
    return content


def _check_texts(value: object, where: str) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{where}: expected a text, got a lone surrogate in {value[:40]!a}; leave out the "
                "half of a character"
            ) from None
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_texts(item, f"{where}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key, f"{where}: a key")
            _check_texts(item, f"{where}: {ascii(key)[1:-1]}")
