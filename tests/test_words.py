"""check_words.py finds question words and unwanted words where they are prose; the tree has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_words

ROOT = Path(__file__).parents[1]
CLEAN = {
    "python/fastsft/clean.py": '"""Reads `behind` of a page.\n\nWhat is read may be long."""\n'
    'beside = "it stands behind"  # a string is no comment\n',
    "csrc/core/clean.cpp": "int behind = 1'000;  // all is plain, `behind` too\n"
    'const char* a = "// behind"; const char* b = R"x(// anew)x"; char c = \'"\';\n',
}
BROKEN = [
    ("python/fastsft/a.py", '"""What is here."""\n', 1, "docstring begins with"),
    ("python/fastsft/a.py", 'class A:\n    """\n    Whether so."""\n', 2, "docstring begins with"),
    ("python/fastsft/a.py", 'async def f():\n    """How so."""\n', 2, "docstring begins with"),
    ("python/fastsft/a.py", '"""A page.\n\nIt stands here."""\n', 3, '"stands"; write: is'),
    ("python/fastsft/a.py", "a = 1\nb = '#'  # made anew\n", 2, '"anew"; write: again'),
    ("csrc/core/a.h", "int a;\nint b;  // behind a\n", 2, '"behind"; write: after'),
    ("csrc/ops/a.cuh", "/* one\n   two beside three */\n", 2, '"beside"; write: next to'),
    ("csrc/ops/a.cu", "int a = 1'000;  // it's mended\n", 1, '"mended"; write: fix'),
]


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_clean_tree_is_clean(tmp_path: Path) -> None:
    assert check_words.check_tree(write_tree(tmp_path, CLEAN)) == []
    assert check_words.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(("name", "text", "line", "message"), BROKEN)
def test_each_fault_is_found(tmp_path: Path, name: str, text: str, line: int, message: str) -> None:
    found = check_words.check_tree(write_tree(tmp_path, {**CLEAN, name: text}))
    assert len(found) == 1 and found[0].startswith(f"{tmp_path / name}:{line}: ") and message in found[0]


def test_command_line_names_file_and_line_and_fails(tmp_path: Path) -> None:
    write_tree(tmp_path, {**CLEAN, "csrc/core/a.h": "// dearest\n"})
    command = [sys.executable, str(ROOT / "scripts" / "check_words.py"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert f'{tmp_path / "csrc/core/a.h"}:1: "dearest"; write: most expensive' in result.stdout
    assert subprocess.run([*command[:2], str(tmp_path / "none")], capture_output=True).returncode == 2


def test_this_tree_is_clean() -> None:
    assert check_words.check_tree(ROOT) == []
