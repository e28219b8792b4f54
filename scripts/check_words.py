"""Checks the English of docstrings and comments; prints `file:line: what is wrong; the way out`.

usage: python scripts/check_words.py [ROOT]

In `python/fastsft` and `csrc` below ROOT (default: the repository) no docstring begins with a question word,
and no docstring or comment uses a word of `plain_words.PLAIN`. Spans of `code` are not prose.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from plain_words import unwanted

ROOT = Path(__file__).parents[1]
QUESTION = re.compile(r"\s*(What|Whether|How|Where|Which|Who|When)\b")
CODE_SPAN = re.compile(r"(`+)(?:(?!\1).)+\1")
CPP_SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
# A comment, or what may hold `//` without being one: a string (raw ones, too) or a character.
CPP_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)

Prose = Iterator[tuple[int, str]]


def docstrings(source: str) -> Prose:
    """First line and text of each docstring of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def python_comments(source: str) -> Prose:
    """Line and text of each comment of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def cpp_comments(source: str) -> Prose:
    """First line and text of each comment of a C++ or CUDA file."""
    for token in CPP_TOKEN.finditer(source):
        if token["comment"]:
            yield source.count("\n", 0, token.start()) + 1, token["comment"]


def word_faults(prose: Prose) -> Iterator[tuple[int, str]]:
    """Line and message for each unwanted word in texts that begin at the given lines."""
    for first, text in prose:
        for line, part in enumerate(text.splitlines(), first):
            for message in unwanted(CODE_SPAN.sub("code", part)):
                yield line, message


def question_faults(prose: Prose) -> Iterator[tuple[int, str]]:
    """Line and message for each docstring that begins with a question word."""
    for line, text in prose:
        if found := QUESTION.match(text):
            yield line, f'docstring begins with "{found[1]}"; write a noun, a verb or "True if"'


def faults(path: Path) -> list[tuple[int, str]]:
    """Line and message of each fault of a file, in order."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        return list(word_faults(cpp_comments(source)))
    return sorted(
        [
            *question_faults(docstrings(source)),
            *word_faults(docstrings(source)),
            *word_faults(python_comments(source)),
        ]
    )


def files(root: Path) -> list[Path]:
    """The checked files below `root`."""
    sources = [path for path in (root / "csrc").rglob("*") if path.suffix in CPP_SUFFIXES]
    return sorted([*(root / "python" / "fastsft").rglob("*.py"), *sources])


def check_tree(root: Path) -> list[str]:
    """`file:line: message` of each fault below `root`."""
    return [f"{path}:{line}: {message}" for path in files(root) for line, message in faults(path)]


def main(words: list[str]) -> int:
    """0 when nothing is wrong, 1 when something is, 2 where there are no files."""
    root = Path(words[0]) if words else ROOT
    if not files(root):
        print(f"no sources below {root}; give the repository's root", file=sys.stderr)
        return 2
    found = check_tree(root)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
