"""docs/errors.md names messages that the program says: each part of one is in a text of the sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cli.test_mistakes import OF_COMMANDS, OF_TRAINING

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"(?:\s*"((?:[^"\\\n]|\\.)*)")*')


def python_texts(path: Path) -> list[str]:
    """Every string of a module; a value inside an f-string is a line break here."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\n" for part in node.values]
            texts.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def cpp_texts(path: Path) -> list[str]:
    """Every string of a file; neighbouring literals are one."""
    texts = []
    for found in _LITERAL.finditer(path.read_text("utf-8")):
        parts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', found[0])
        texts.append("".join(parts).replace('\\"', '"').replace("\\n", "\n"))
    return texts


@pytest.fixture(scope="module")
def said() -> str:
    """Texts of the package, and the parts of messages that tests of mistakes wait for."""
    texts = [text for path in (ROOT / "python").rglob("*.py") for text in python_texts(path)]
    texts += [text for path in (ROOT / "csrc").rglob("*.cpp") for text in cpp_texts(path)]
    texts += [part for _, _, part in [*OF_COMMANDS.values(), *OF_TRAINING.values()]]
    return "\n".join(texts)


def messages() -> list[str]:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_is_said(message: str, said: str) -> None:
    """What differs from run to run is "..." on the page."""
    parts = [part.strip(" ;:,") for part in message.split("...")]
    assert all(part in said for part in parts), parts


def test_a_message_that_nothing_says_is_found(said: str) -> None:
    assert "LoRA is not in yet" not in said and len(messages()) > 20
