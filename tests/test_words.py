"""measure_words.py counts what it says; the figures of this tree do not rise, and the glossary holds."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import measure_words
from measure_words import ROOT, Figures, measure, replaced_names, replaced_uses, texts

# Of this tree, rounded up: lower them when they fall.
MOST = {"prepositions": 10, "few": 15}
MOST_PER_THOUSAND = {"of": 38, "what": 3.7, "one": 7.5, "where": 2.2, "it": 9.7}
MOST_REPLACED_NAMES = 1165
PYTHON = '''"""Of a page, what one has of it.

`of` in code is none, nor is "of" in a string.
"""

OF = "what of it"  # where it is

class A:
    """A row."""

    def f(self):
        """Return what there is."""
        # one comment
        # of two lines

async def g():
    """As f."""
'''
CPP = """// Of a file.
int a = 1'000;  // it's one
const char* b = "// of"; const char* c = R"x(// of)x"; char d = '"';
/* Where
   two lines are */
"""


def written(root: Path) -> Path:
    for name, text in (("python/fastsft/a.py", PYTHON), ("csrc/a.cpp", CPP), ("tests/test_a.py", PYTHON)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_docstrings_and_comments_are_counted(tmp_path: Path) -> None:
    found = texts(written(tmp_path))
    assert [(each.path.name, each.line, each.kind) for each in found] == [
        ("a.cpp", 1, "comment"), ("a.cpp", 4, "comment"), ("a.py", 1, "module"), ("a.py", 9, "class"),
        ("a.py", 17, "function"), ("a.py", 12, "function"), ("a.py", 6, "comment"), ("a.py", 13, "comment"),
    ]  # fmt: skip
    figures = measure(found)
    assert (figures.docstrings, figures.prepositions, figures.few) == (4, 2, 2)
    assert (figures.functions, figures.verbs) == (2, 1)
    assert [figures.words[word] for word in measure_words.COUNTED] == [5, 2, 3, 2, 2]


def test_shares_of_nothing() -> None:
    assert Figures().per_thousand("of") == 0
    assert len(measure_words.column(Figures())) == len(measure_words.ANCHORS)


@pytest.fixture(scope="module")
def of_this_tree() -> list[Any]:
    return texts(ROOT)


def test_a_draw_is_repeated_by_its_seed(
    of_this_tree: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure_words, "texts", lambda root: of_this_tree)
    shown = []
    for seed in "112":
        monkeypatch.setattr(sys, "argv", ["measure_words.py", "--draw", "20", "--seed", seed])
        assert measure_words.main() == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]
    assert len(shown[0].splitlines()) == 20
    for line in shown[0].splitlines():
        place = re.match(r"\d+\. (\S+):(\d+): \S", line)
        assert place is not None and (ROOT / place[1]).is_file()


def test_figures_of_this_tree_do_not_rise(of_this_tree: list[Any]) -> None:
    figures = measure(of_this_tree)
    found = {name: getattr(figures, name) for name in MOST}
    assert all(found[name] <= most for name, most in MOST.items()), found
    rates = {word: figures.per_thousand(word) for word in MOST_PER_THOUSAND}
    assert all(rates[word] <= most for word, most in MOST_PER_THOUSAND.items()), rates


def test_replaced_names_do_not_spread() -> None:
    names, uses = replaced_names(ROOT), replaced_uses(ROOT)
    assert len(names) == len(set(names))
    assert [name for name in names if not uses[name]] == [], (
        "replaced everywhere: delete them in the glossary"
    )
    assert uses.total() <= MOST_REPLACED_NAMES, uses


@pytest.mark.parametrize(
    "section", re.findall(r"^## .*?(?=^## |\Z)", (ROOT / "docs/glossary.md").read_text(), re.M | re.S)
)
def test_terms_are_sorted_into_tables_once(section: str) -> None:
    rows = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    assert all(row.count(" | ") in (2, 1) or row.endswith("|") for row in rows)
    terms = [row.split(" | ")[0] for row in rows[1:]]
    assert len(terms) == len(set(terms)) > 5
