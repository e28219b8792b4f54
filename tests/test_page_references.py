"""Every reference to a page leads to a file, and to a section, rule or row that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_references import expanded, problems

ROOT = Path(__file__).parents[1]
RULES = """# Rules

## 1. First

1. One.
2. Two.

### 1.1 Below

## 2. Second

1. Of the second.

| row | |
|---|---|
| R1 | a |
| R2 | b |
"""
PAGE = "docs/spec/rules.md"


def test_every_reference_leads_somewhere() -> None:
    found = problems(ROOT)
    assert not found, "\n".join(["", *found])


def problems_with(root: Path, name: str, text: str) -> list[str]:
    """Of a tree with the page above and one file more."""
    (root / "docs" / "spec").mkdir(parents=True)
    (root / PAGE).write_text(RULES)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    return problems(root)


GOOD = [
    PAGE,
    f"{PAGE}, section 1.1",
    f"{PAGE}, sections 1 and 2",
    f"{PAGE}, sections 1 to 2",
    f"{PAGE}, section 1, rules 1 to 2",
    f"{PAGE}, rows R1 and R2",
    f'{PAGE}, "Rules"',
    f"({PAGE},\n# section 1.1)",
    f"{PAGE}, section\n// 1.1",
    'open("other.md")',
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_there(tmp_path: Path, text: str) -> None:
    assert problems_with(tmp_path, "python/a.py", f"# {text}\n") == []


BAD = {
    "rules.md": "no such file",
    "docs/other.md, section 1": "no such file",
    f"{PAGE}, section 3": "has no section 3",
    f"{PAGE}, sections 1 to 3": "has no section 3",
    f"{PAGE}, sections 1 and 1.2": "has no section 1.2",
    f"{PAGE}, section 2, rule 2": "has no rule 2 in section 2",
    f"{PAGE}, section 1.1, rule 1": "has no rule 1 in section 1.1",
    f"{PAGE}, rows R1 and R3": "has no row R3",
    f'{PAGE}, "Words"': 'has no heading "Words"',
    f"({PAGE},\n// section 1.2)": "has no section 1.2",
    f"{PAGE}, 1.1": 'write ", section" or ", row"',
    f"{PAGE}, R1": 'write ", section" or ", row"',
    "see section 1": "of which page?",
    "see rules 1 and 2": "of which page?",
}


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize(
    "name", ["python/a.py", "csrc/a.h", "tests/b/a.cpp", "README.md", "docs/a.md", "CMakeLists.txt"]
)
def test_what_is_not_there(tmp_path: Path, name: str, text: str) -> None:
    (problem,) = problems_with(tmp_path, name, f"// {text}\n")
    assert problem.startswith(f"{name}: ") and BAD[text] in problem


def test_links_are_references(tmp_path: Path) -> None:
    text = "[a](spec/rules.md#first), section 1 and [b](spec/rules.md), section 4; [c](https://x.y/z.md)\n"
    assert problems_with(tmp_path, "docs/a.md", text) == [f"docs/a.md: {PAGE} has no section 4"]


def test_a_page_of_rules_may_name_its_own(tmp_path: Path) -> None:
    text = "# A\n\n## 1. B\n\n1. As section 1 and rule 1; not section 2, rule 2, row R1.\n"
    found = problems_with(tmp_path, "docs/spec/a.md", text)
    assert sorted(found) == [
        f"docs/spec/a.md: has itself no {what}" for what in ("row R1", "rule 2 in section 2", "section 2")
    ]


def test_texts_of_others_are_left_alone(tmp_path: Path) -> None:
    assert problems_with(tmp_path, "tests/golden/chat/a.md", "see section 1\n") == []


def test_lists_of_items() -> None:
    assert expanded("1, 2 and 4.1") == ["1", "2", "4.1"]
    assert expanded("3 to 5") == ["3", "4", "5"]
    assert expanded("R9 to R11 and R2") == ["R9", "R10", "R11", "R2"]
    assert expanded("4.1 to 4.3") == ["4.1", "4.3"]
