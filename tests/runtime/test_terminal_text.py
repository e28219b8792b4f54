"""Lines on a terminal end at words; what is read by programs stays as it is."""

from __future__ import annotations

import io
import sys

import pytest

from fastsft.cli.command_parser import print_error
from fastsft.program.main import run_script
from fastsft.runtime.terminal import fitted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


LINE = (
    "48 conversations, 4624 tokens, 1976 learned; a/long/path/that/stays/whole/however/wide/it/is.json\n"
    "  next"
)


def test_words_and_paths_stay_whole() -> None:
    lines = fitted(LINE, Terminal()).split("\n")
    assert lines == [
        "48 conversations, 4624 tokens, 1976",
        "  learned;",
        "  a/long/path/that/stays/whole/however/wide/it/is.json",
        "  next",
    ]


@pytest.mark.parametrize("text", ["a  table  of  columns " * 4, "a\ttab " * 20, "short"])
def test_tables_stay_as_they_are(text: str) -> None:
    assert fitted(text, Terminal()) == text


def test_what_is_no_terminal_gets_the_text_as_it_is() -> None:
    assert fitted(LINE, io.StringIO()) == LINE


def test_errors_of_programs_end_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> None:
        raise ValueError(LINE)

    monkeypatch.setattr("sys.argv", ["train", "--help"])
    for call, begin in (
        (lambda: run_script(script), "error: 48 conversations, 4624 tokens,"),
        (lambda: print_error("inspect", LINE), "fastsft inspect: 48 conversations, 4624"),
    ):
        monkeypatch.setattr(sys, "stderr", Terminal())
        try:
            call()
        except SystemExit as left:
            assert left.code == 1
        lines = sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
        assert lines[0] == begin and lines[-1] == "  next"
        assert [line for line in lines if len(line) > 40] == ["  " + LINE.split("; ")[1].split("\n")[0]]
