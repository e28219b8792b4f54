"""Checks the prose of the documents; prints `file:line: what is wrong; the way out`.

usage: python scripts/check_prose.py [--table] [PAGE ...]

A page passes when its mean sentence has at most 16 words and no paragraph has more than 80. Code, addresses
of links, pictures and HTML are not prose. A list item and a table cell are each a paragraph; cells and
headings do not count for the mean, since they are seldom sentences.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEAN_WORDS = 16.0
PARAGRAPH_WORDS = 80

SENTENCE_END = re.compile(r"(?<!\.\.)[.!?]['\")*_]*\s+")  # an ellipsis ends none
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf)\.")
WORD = re.compile(r"[^\W_][\w'-]*(?:[.,][\w]+)*")
FENCE = re.compile(r"^\s*(```|~~~)")
LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")


@dataclass(frozen=True)
class Paragraph:
    """Text between blank lines, a list item, a heading or a table cell, from `lines[0]` on."""

    kind: str  # "text", "heading" or "cell"
    lines: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        return " ".join(line for _, line in self.lines)

    @property
    def line(self) -> int:
        return self.lines[0][0]


@dataclass(frozen=True)
class Fault:
    """A fault in `line` of a page."""

    line: int
    message: str


def plain(line: str) -> str:
    """`line` without marks: a span of code is one word, a link its text, a picture or HTML nothing."""
    line = re.sub(r"(`+)(?:(?!\1).)+\1", " code ", line)
    line = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", line)
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    line = re.sub(r"</?[A-Za-z][^<>]*>|https?://\S+", " ", line)
    return ABBREVIATION.sub(" eg ", line)


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a page; those of code and of HTML comments are blank."""
    fence, in_list, blank = "", False, True
    for number, line in enumerate(re.sub(r"<!--.*?-->", _blank_lines, text, flags=re.S).splitlines(), 1):
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
            yield number, ""
            continue
        in_list = bool(LIST_ITEM.match(line)) or (in_list and (not line.strip() or line.startswith(" ")))
        indented = line.startswith("    ") and blank and not in_list
        blank = indented or not line.strip()
        yield number, "" if fence or indented else line


def _blank_lines(comment: re.Match[str]) -> str:
    return "\n" * comment[0].count("\n")


def paragraphs(text: str) -> list[Paragraph]:
    """Return the prose of a page of Markdown, in order."""
    found: list[Paragraph] = []
    current: list[tuple[int, str]] = []
    for number, line in [*prose_lines(text), (0, "")]:
        heading, row = line.startswith("#"), line.lstrip().startswith("|")
        item = LIST_ITEM.match(line)
        if current and (not line.strip() or heading or row or item):
            found.append(Paragraph("text", tuple(current)))
            current = []
        if heading:
            found.append(Paragraph("heading", ((number, plain(line.lstrip("# "))),)))
        elif row:
            found += [Paragraph("cell", ((number, cell),)) for cell in plain(line).split("|") if cell.strip()]
        elif line.strip():
            current.append((number, plain(line[item.end() :] if item else line.strip())))
    return found


def count(text: str) -> int:
    """Count the words of `text`."""
    return len(WORD.findall(text))


def sentence_lengths(text: str) -> list[int]:
    """Return the words of each sentence of the prose; fragments of one or two words do not count."""
    texts = [paragraph.text for paragraph in paragraphs(text) if paragraph.kind == "text"]
    lengths = [count(sentence) for each in texts for sentence in SENTENCE_END.split(each)]
    return [length for length in lengths if length > 2]


def mean_sentence(text: str) -> float:
    """Return the mean number of words of a page's sentences, 0 without any."""
    lengths = sentence_lengths(text)
    return sum(lengths) / len(lengths) if lengths else 0.0


def faults(text: str) -> list[Fault]:
    """Return the faults of the prose of a page, by line."""
    found = []
    for paragraph in paragraphs(text):
        words = count(paragraph.text)
        if words > PARAGRAPH_WORDS:
            way = "split it, or make a list of it"
            found.append(
                Fault(paragraph.line, f"{paragraph.kind} of {words} words, at most {PARAGRAPH_WORDS}; {way}")
            )
    mean = mean_sentence(text)
    if mean > MEAN_WORDS:
        found.append(
            Fault(1, f"{mean:.1f} words in the mean sentence, at most {MEAN_WORDS:.0f}; split the long ones")
        )
    return found


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that are checked."""
    at_top = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*(page for page in at_top if page.exists()), *sorted((root / "docs").rglob("*.md"))]


def page_faults(page: Path) -> list[Fault]:
    """Return the faults of one page, by line."""
    return sorted(faults(page.read_text("utf-8")), key=lambda fault: fault.line)


def table(page: Path) -> str:
    """Return a line of mean sentence, longest paragraph and number of words of a page."""
    text = page.read_text("utf-8")
    sizes = [count(paragraph.text) for paragraph in paragraphs(text)]
    return f"{mean_sentence(text):5.1f} {max(sizes, default=0):4d} {sum(sizes):6d}  {page}"


def main(words: list[str]) -> int:
    """Return 0 if all pages are in order, else 1; `--table` prints their figures first."""
    chosen = [Path(word).resolve() for word in words if word != "--table"] or pages()
    if "--table" in words:
        print(f"{'mean':>5} {'long':>4} {'words':>6}  page", *map(table, chosen), sep="\n")
    found = [(page, fault) for page in chosen for fault in page_faults(page)]
    for page, fault in found:
        print(
            f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{fault.line}: {fault.message}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
