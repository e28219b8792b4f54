"""The code blocks of the walkthrough are those of the sources, and cut_blocks.py cuts them as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cut_blocks

PAGE = cut_blocks.PAGE.read_text("utf-8")
PYTHON = '''class A:
    def f(
        self,
    ) -> None:
        """Do."""
        first()
        if traced:
            trace()

        last()

    def g(self) -> None: ...
'''
PYTHON_F = '''def f(
    self,
) -> None:
    """Do."""
    first()
    if traced:
        trace()

    last()
'''
CPP = """void f(int a,
       int b) {
  first();
  if (b) {
    second();
  }
  third();
}
void g();
"""


def test_the_walkthrough_is_fresh() -> None:
    assert cut_blocks.refreshed(PAGE) == PAGE, "stale: python scripts/cut_blocks.py"


def test_every_block_of_the_walkthrough_is_cut() -> None:
    blocks = re.findall(r"^\s*```\w+$", PAGE, re.M)
    assert len(blocks) == len(cut_blocks.BLOCK.findall(PAGE)) >= 8


def tree(root: Path) -> Path:
    (root / "a.py").write_text(PYTHON)
    (root / "a.cpp").write_text(CPP)
    return root


CUTS = {
    "a.py | def f(": PYTHON_F,
    "a.py | first() .. trace()": "first()\nif traced:\n    trace()\n",
    "a.py | first() .. last() | without: if traced .. trace()": "first()\n...\n\nlast()\n",
    "a.cpp | void f( | without: if (b) .. }": (
        "void f(int a,\n       int b) {\n  first();\n  ...\n  third();\n}\n"
    ),
    "a.cpp | void f( | without: second; third": (
        "void f(int a,\n       int b) {\n  first();\n  if (b) {\n    ...\n  }\n  ...\n}\n"
    ),
    "a.cpp | void g() .. void g()": "void g();\n",
}  # fmt: skip


@pytest.mark.parametrize("comment", CUTS)
def test_cuts(tmp_path: Path, comment: str) -> None:
    cut = cut_blocks.parse(comment)
    assert cut_blocks.code_of(cut, tree(tmp_path)) == CUTS[comment]
    assert str(cut) == comment


def test_a_changed_source_makes_a_page_stale(tmp_path: Path) -> None:
    page = f"# A\n\n<!-- cut: a.cpp | void f( -->\n```cpp\n{CPP.split('void g')[0]}```\n"
    assert cut_blocks.refreshed(page, tree(tmp_path)) == page
    (tmp_path / "a.cpp").write_text(CPP.replace("first", "other"))
    assert cut_blocks.refreshed(page, tmp_path) == page.replace("first", "other")


def test_texts_that_match_nothing_are_dropped(tmp_path: Path) -> None:
    page = "<!-- cut: a.cpp | void g() .. void g() | without: gone -->\n```cpp\nvoid g();\n```\n"
    assert cut_blocks.refreshed(page, tree(tmp_path)) == page.replace(" | without: gone", "")


BROKEN = {
    "b.cpp | void f(": "b.cpp: no such file",
    "a.cpp | void h(": "expected one line with 'void h(', got 0",
    "a.cpp | void": "expected one line with 'void', got 2",
    "a.cpp | void f( .. gone": "expected a line with 'gone' after 'void f('",
}


@pytest.mark.parametrize("comment", BROKEN)
def test_comments_that_lead_nowhere(tmp_path: Path, comment: str) -> None:
    with pytest.raises(cut_blocks.CutError, match=re.escape(BROKEN[comment])):
        cut_blocks.code_of(cut_blocks.parse(comment), tree(tmp_path))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- cut: csrc/ops/rms_norm/rms_norm.h | namespace fastsft { -->\n```cpp\nold\n```\n")
    assert cut_blocks.main(["--check", str(page)]) == 1
    assert "stale" in capsys.readouterr().err
    assert cut_blocks.main([str(page)]) == 0
    assert "old" not in page.read_text()
    assert cut_blocks.main(["--check", str(page)]) == 0
