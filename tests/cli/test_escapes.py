"""Names in files of strangers reach a terminal as escapes, wherever messages are made."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fastsft.program import main as entry
from fastsft.reporting.console_text import columns
from fastsft.runtime import messages as notices
from fastsft.runtime.terminal import visible

HOSTILE = "llama\x1b]0;owned\x07\x1b[2J\u202e\x9b"
SHOWN = "llama\\x1b]0;owned\\x07\\x1b[2J\\u202e\\x9b"


def test_errors_of_a_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> None:
        raise ValueError(f"model_type {HOSTILE}")

    monkeypatch.setattr("sys.argv", ["train", "--help"])
    with pytest.raises(SystemExit) as caught:
        entry.run_script(script)
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"error: model_type {SHOWN}\n"


def test_a_run_without_memory_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("sys.argv", ["train", "--help"])
    with pytest.raises(SystemExit) as caught:
        entry.run_script(script)
    assert caught.value.code == 1 and "error: out of memory" in capsys.readouterr().err


def test_notices(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    notices.tell(HOSTILE)
    with caplog.at_level(logging.WARNING, "fastsft"):
        notices.warn_once(f"{HOSTILE} of this test")
    assert capsys.readouterr().out == f"{SHOWN}\n"
    assert f"{SHOWN} of this test" in caplog.text and "\x1b" not in caplog.text


def test_pages() -> None:
    assert SHOWN in columns([("model", HOSTILE)], 200)


def test_a_path_that_is_no_text() -> None:
    assert visible(str(Path("a\udcff"))) == "a\\udcff"
