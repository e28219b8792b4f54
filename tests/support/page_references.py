"""References to pages: each names a file of the repository by its path, and a place that is in it.

The one form: `docs/signals.md`, `docs/signals.md, "Bad numbers (NaN, inf)"`,
`docs/spec/weight_sync.md, section 4.2`,
`docs/spec/trainer_semantics.md, sections 3 to 6`, `docs/spec/fastchat_labels.md, section 2, rules 6 to 13`,
`docs/spec/reliability.md, rows R1 and R2`. Inside a page of docs/spec a place without a page is its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FOLDERS = ("python", "csrc", "tests", "benchmarks", "scripts", "docs", "cmake", "examples")
_SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".cu", ".cuh", ".md", ".sh", ".cmake", ".toml", ".ipynb"}
_DATA = ("tests", "golden")  # texts of others
_RULES = "docs/spec/"
_MADE_UP = "test_page_references.py"  # its tree is its own

_ITEM = r"(?:\d+(?:\.\d+)*|[A-Z]\d+)\b"
_MORE = rf"(?:(?:, | and | to ){_ITEM})*"
_ITEMS = _ITEM + _MORE
_SECTIONS = rf"sections? (?P<sections>{_ITEMS})(?:, rules? (?P<rules>{_ITEMS}))?"
_REFERENCE = re.compile(
    r"(?<![\w./*-])(?P<page>[\w./-]*\w\.md)\b"
    rf'(?:`?, (?:"(?P<title>[^"]+)"|{_SECTIONS}|rows? (?P<rows>{_ITEMS}))|(?P<loose>,? {_ITEM}))?'
)
_OWN = re.compile(rf"\b(?:{_SECTIONS}|rules? (?P<items>{_ITEMS})|rows? (?P<rows>[A-Z]\d+{_MORE}))")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]*)\)")
_LINE_BREAK = re.compile(r"[ \t]*\n[ \t]*(?://|#)?[ \t]*")


class Place(NamedTuple):
    """What a reference names besides the page; empty where it names nothing."""

    title: str = ""
    sections: str = ""
    rules: str = ""
    rows: str = ""


class Page:
    """A page as text, with the places that can be named in it."""

    def __init__(self, path: Path) -> None:
        text = path.read_text("utf-8")
        parts = re.split(r"^#+ (.*)$", text, flags=re.M)
        self.titles = set(parts[1::2])
        self._rules: dict[str, set[str]] = {}
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            number = re.match(r"\d+(?:\.\d+)*", title)
            if number is not None:
                self._rules[number[0]] = set(re.findall(r"^(\d+)\. ", body, re.M))
        self._rows = set(re.findall(r"^\| ([A-Z]\d+) \|", text, re.M))

    def missing(self, place: Place) -> Iterator[str]:
        """Every part of `place` that is not there, in words."""
        if place.title and place.title not in self.titles:
            yield f'heading "{place.title}"'
        sections = expanded(place.sections)
        for section in sections:
            if section not in self._rules:
                yield f"section {section}"
            for rule in expanded(place.rules):
                if rule not in self._rules.get(section, ()):
                    yield f"rule {rule} in section {section}"
        for row in expanded(place.rows):
            if row not in self._rows:
                yield f"row {row}"

    def has_rule(self, rule: str) -> bool:
        """Whether any section has a rule of that number."""
        return any(rule in rules for rules in self._rules.values())


def expanded(items: str) -> list[str]:
    """The items of "1, 2 and 4.1", or of "R3 to R5": all between the ends where these are whole numbers."""
    found: list[str] = []
    for part in re.split(r", | and ", items) if items else ():
        first, _, last = part.partition(" to ")
        ends = re.fullmatch(r"([A-Z]?)(\d+) to \1(\d+)", part)
        if ends is not None:
            found += [f"{ends[1]}{number}" for number in range(int(ends[2]), int(ends[3]) + 1)]
        else:
            found += [first, last] if last else [first]
    return found


def sources(root: Path) -> Iterator[Path]:
    """Files that may refer to pages: code, tests, scripts, pages."""
    yield from (path for path in sorted(root.iterdir()) if path.is_file() and _is_source(path))
    for folder in _FOLDERS:
        for directory, folders, files in os.walk(root / folder):
            here = Path(directory)
            folders[:] = sorted(name for name in folders if (here / name).relative_to(root).parts != _DATA)
            yield from (here / name for name in sorted(files) if _is_source(here / name))


def _is_source(path: Path) -> bool:
    return (path.suffix in _SUFFIXES and path.name != _MADE_UP) or path.name == "CMakeLists.txt"


def problems(root: Path) -> list[str]:
    """What is wrong with the references of all files below `root`, a line each."""
    find = cache(Page)
    return [
        f"{path.relative_to(root)}: {problem}"
        for path in sources(root)
        for problem in problems_of(path, root, find)
    ]


def problems_of(path: Path, root: Path, find: Callable[[Path], Page]) -> Iterator[str]:
    """Of one file."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        text = _LINK.sub(lambda link: _path_of_link(link[1], path, root), text)
    text = _LINE_BREAK.sub(" ", text)
    for reference in _REFERENCE.finditer(text):
        page, place = reference["page"], _place(reference)
        if _is_quoted_name(reference, text):
            continue
        if not (root / page).is_file():
            yield f"{page}: no such file; a page is cited by its path from the root"
        elif reference["loose"]:
            yield f'{reference[0]}: write ", section" or ", row" before the number'
        else:
            yield from (f"{page} has no {what}" for what in find(root / page).missing(place))
    rest = _REFERENCE.sub("", text)
    own = find(path) if str(path.relative_to(root)).startswith(_RULES) else None
    for bare in _OWN.finditer(rest):
        if own is None:
            if not bare["rows"]:
                yield f"{bare[0]}: of which page?"
            continue
        yield from (f"has itself no {what}" for what in own.missing(_place(bare)))
        yield from (
            f"has itself no rule {rule}" for rule in expanded(bare["items"] or "") if not own.has_rule(rule)
        )


def _place(found: re.Match[str]) -> Place:
    named = found.groupdict()
    return Place(**{name: named.get(name) or "" for name in Place._fields})


def _is_quoted_name(reference: re.Match[str], text: str) -> bool:
    """A name alone between quotes is a value of code, which joins it to a directory itself."""
    around = text[reference.start() - 1 : reference.start()], text[reference.end() : reference.end() + 1]
    return "/" not in reference["page"] and around in (("'", "'"), ('"', '"'))


def _path_of_link(target: str, document: Path, root: Path) -> str:
    """The target of a link as a path from the root; nothing for links that leave the repository."""
    if ":" in target or target.startswith("#"):
        return ""
    return os.path.relpath((document.parent / target.split("#")[0]).resolve(), root.resolve())
