"""A pipe to which nobody writes: a line says that it is waited for, and the waiting ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from fastsft.sources import readers as waiting_pipe
from fastsft.sources.readers import open_data


def test_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(waiting_pipe, "SECONDS_UNTIL_TOLD", 0.05)
    monkeypatch.setattr(waiting_pipe, "SECONDS_TO_WAIT", 0.1)
    with pytest.raises(
        ValueError, match=r"pipe: expected data, got a pipe to which nobody has written for 0\.1 s"
    ):
        open_data(str(tmp_path / "pipe"))
    assert "pipe is a pipe: waiting for somebody to write to it" in capsys.readouterr().out


def test_a_writer_that_comes_late_and_writes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(waiting_pipe, "SECONDS_UNTIL_TOLD", 0.05)

    def write() -> None:
        time.sleep(0.3)
        with (tmp_path / "pipe").open("wb", buffering=0) as file:
            time.sleep(0.3)
            file.write(b"one")
            time.sleep(0.3)
            file.write(b"two")

    writer = threading.Thread(target=write)
    writer.start()
    with open_data(str(tmp_path / "pipe")) as file:
        assert file.read() == b"onetwo"
    writer.join()


def test_a_writer_that_writes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").open("wb").close())
    writer.start()
    with open_data(str(tmp_path / "pipe")) as file:
        assert file.read() == b""
    writer.join()


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with pytest.raises(ValueError, match="s: the data file cannot be read"):
            open_data("s")
