"""The writer of all files that Python makes: calls that fail for a moment, errors that say the way out."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastsft.runtime import file_calls
from fastsft.runtime.file_calls import is_disk_full
from fastsft.runtime.new_files import NewFile, fresh_file
from fastsft.runtime.output_files import files_of, replace_file, write_below

TEXT = "what is written " * 5000
CALLS = ("open", "pwrite", "replace", "mkdir")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    here, real = threading.get_ident(), time.sleep

    def pause(seconds: float) -> None:  # threads that other tests have started go on as before
        if threading.get_ident() == here:
            waited.append(seconds)
        else:
            real(seconds)

    monkeypatch.setattr(file_calls.time, "sleep", pause)
    return waited


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, times: int, *, after: bool = False
) -> Any:
    """os.<name> fails so often with errno `number`; after: the work was done, and its answer was lost."""
    real: Callable[..., Any] = getattr(os, name)
    left = [times]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            if after:
                real(*args, **kwargs)
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)
    return left


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", CALLS)
def test_three_more_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, no_pauses: list[float]
) -> None:
    failing(monkeypatch, name, number, 3)
    write_below(tmp_path, "folder/page.html", TEXT)
    assert (tmp_path / "folder" / "page.html").read_text() == TEXT
    assert no_pauses == [0.005, 0.02, 0.08] and len(list(tmp_path.rglob("*"))) == 2


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE]
)
@pytest.mark.parametrize("name", CALLS)
def test_an_error_has_its_path_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    (tmp_path / "page.html").write_text("old")
    failing(monkeypatch, name, number, 4 if number == errno.EIO else 1)
    with pytest.raises(OSError) as caught:
        write_below(tmp_path, "folder/page.html", TEXT)
    monkeypatch.undo()
    assert caught.value.errno == number and str(tmp_path) in str(caught.value.filename)
    said = str(caught.value.strerror)
    assert said.startswith("cannot ") and os.strerror(number) in said and "; " in said
    assert ("bytes are free there" in said) == (number == errno.ENOSPC)
    assert is_disk_full(caught.value) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "page.html"]


@pytest.mark.parametrize("name", ["open", "replace", "mkdir"])
def test_a_lost_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The work was done; the next try finds it."""
    failing(monkeypatch, name, errno.ESTALE, 1, after=True)
    write_below(tmp_path, "folder/page.html", TEXT)
    monkeypatch.undo()
    assert (tmp_path / "folder" / "page.html").read_text() == TEXT


def test_a_failed_sync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = failing(monkeypatch, "fsync", errno.EIO, 2)
    with pytest.raises(OSError, match="cannot sync"), fresh_file(tmp_path, "page.html", durable=True) as file:
        file.write(TEXT.encode())
    assert left == [1] and not list(tmp_path.iterdir())


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: real(file, data[:777], offset))
    replace_file(tmp_path / "page.html", TEXT)
    assert (tmp_path / "page.html").read_text() == TEXT


def test_a_limit_of_the_size_of_files(tmp_path: Path) -> None:
    """By the kernel itself, in a child."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                replace_file(tmp_path / "page.html", TEXT)
            except OSError as error:
                status = 0 if "`ulimit -f`" in str(error) and "free" not in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(tmp_path.iterdir())


def test_writes_of_all_sizes(tmp_path: Path) -> None:
    """What is collected and what is not, at their places."""
    parts = [b"a" * size for size in (1, 0, 1 << 20, 7, (1 << 20) + 1, 3)]
    with fresh_file(tmp_path, "x") as file:
        for part in parts:
            assert file.write(part) == len(part)
    assert (tmp_path / "x").read_bytes() == b"".join(parts)
    with NewFile(tmp_path / "y") as other:
        other.write_at(5, b"later")
        other.write_at(0, b"first")
    assert (tmp_path / "y").read_bytes() == b"firstlater"


def test_names_of_many_bytes(tmp_path: Path) -> None:
    name = "ü" * 127  # 254 bytes
    replace_file(tmp_path / name, "x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_of_other_libraries_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the directory that is written, when the system's place for such files takes none."""
    places: list[str] = []

    def write(folder: str) -> None:
        places.append(folder)
        if len(places) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        Path(folder, "a").mkdir()
        Path(folder, "a", "b").write_text("x")

    assert files_of(write, tmp_path) == {"a/b": b"x"}
    assert Path(places[1]).parent == tmp_path and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no such setting"):
        files_of(lambda folder: (_ for _ in ()).throw(ValueError("no such setting")), tmp_path)
