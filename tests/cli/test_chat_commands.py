"""Words of `fastsft chat` that begin with a slash: none of them is a question to the model."""

from __future__ import annotations

import pytest

from fastsft.cli.chat import Talk, parse

ASKED = "asked the model"


class Asked(Talk):
    """Says when a question would reach the model, of which there is none here."""

    def _answer(self, question: str) -> int:
        print(f"{ASKED}: {question}")
        return 0


def said(capsys: pytest.CaptureFixture[str], *lines: str) -> list[str]:
    assert Asked(None, parse(["model"])).run(lines) == 0  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("word", ["/exit", "/quit", " /QUIT ", "/bye", "/q"])
def test_leaving(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "one", word, "two") == [f"{ASKED}: one"]


@pytest.mark.parametrize("word", ["/help", "/?", "/Help"])
def test_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, word)
    assert "/reset forgets the conversation, /exit or Ctrl-D leaves" in line


@pytest.mark.parametrize("word", ["/hlep", "/save", "/model"])
def test_a_command_that_is_not_there(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, word)
    assert line.startswith(f"no command {word}; /reset forgets")


@pytest.mark.parametrize(
    "question", ["/usr/bin is what?", "what does /quit do?", "/ is a slash", "//x", "a/b"]
)
def test_questions(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, question) == [f"{ASKED}: {question}"]


def test_reset(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "/reset", "/clear", "/new", "", "  ") == []
