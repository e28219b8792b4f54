"""Cut the code blocks of a page out of the sources, by the comment above each block.

usage: python scripts/cut_blocks.py [--check] [PAGE ...]

    <!-- cut: csrc/train/engine.cpp | void Engine::update( | without: trace::Span; if (a) { .. } -->

names a file, the text of the line where the block begins, and lines that are left out. The block ends with
the definition that begins there, or with the line that has TEXT where the comment says `BEGIN .. TEXT`. Each
text after `without:` leaves out the lines that contain it, and `A .. B` those from A to the next B; where
code is left out, the page has a line `...`. Without `--check` the blocks are written anew, and texts that
match no line any more are dropped; with it the status is 1 if a block is stale. The default page is
docs/walkthrough.md.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "walkthrough.md"
BLOCK = re.compile(r"<!-- cut: (?P<cut>.*?) -->\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
TO = " .. "
CLOSING = ("}", ")")


class CutError(ValueError):
    """A comment that leads to no code."""


@dataclass(frozen=True)
class Cut:
    """The comment above a block: file, first line (`begin`, `end` or "" for a definition), lines left out."""

    file: str
    begin: str
    end: str
    without: tuple[str, ...]

    def __str__(self) -> str:
        place = f"{self.file} | {self.begin}{TO}{self.end}" if self.end else f"{self.file} | {self.begin}"
        return f"{place} | without: {'; '.join(self.without)}" if self.without else place


def parse(comment: str) -> Cut:
    """Return the cut that a comment describes."""
    file, place, *rest = (part.strip() for part in comment.split(" | "))
    begin, _, end = place.partition(TO)
    texts = rest[0].removeprefix("without:").split(";") if rest else ()
    return Cut(file, begin, end, tuple(text.strip() for text in texts))


def lines_of(cut: Cut, root: Path = ROOT) -> list[str]:
    """Return the lines of the sources between begin and end, at the left margin."""
    path = root / cut.file
    if not path.is_file():
        raise CutError(f"{cut.file}: no such file; name the one that has {cut.begin!r}")
    lines = path.read_text("utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if cut.begin in line]
    if len(starts) != 1:
        raise CutError(f"{cut.file}: expected one line with {cut.begin!r}, got {len(starts)}")
    (start,) = starts
    length = _length_to(lines[start:], cut) if cut.end else _length_of_definition(lines[start:])
    return textwrap.dedent("\n".join(lines[start : start + length])).splitlines()


def _length_to(lines: list[str], cut: Cut) -> int:
    for number, line in enumerate(lines):
        if cut.end in line:
            return number + 1
    raise CutError(f"{cut.file}: expected a line with {cut.end!r} after {cut.begin!r}")


def _length_of_definition(lines: list[str]) -> int:
    """Count the lines of a C++ definition to its closing brace, or of a Python one to the next statement."""
    depth = _depth(lines[0])
    for number, line in enumerate(lines[1:], 1):
        if not line.strip() or _depth(line) > depth:
            continue
        if line.strip().startswith("}"):
            return number + 1
        if not line.strip().startswith(CLOSING):
            return len("\n".join(lines[:number]).rstrip().splitlines())
    return len("\n".join(lines).rstrip().splitlines())


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def left_out(lines: list[str], text: str) -> set[int]:
    """Return the numbers of the lines that one text after `without:` leaves out."""
    begin, _, end = text.partition(TO)
    if not end:
        return {number for number, line in enumerate(lines) if text in line}
    found: set[int] = set()
    for start, line in enumerate(lines):
        if begin in line:
            after = (number for number in range(start, len(lines)) if end in lines[number])
            last = next(after, None)
            found |= set() if last is None else set(range(start, last + 1))
    return found


def code_of(cut: Cut, root: Path = ROOT) -> str:
    """Return the text of the block, with `...` where lines are left out."""
    lines = lines_of(cut, root)
    gone = set().union(*(left_out(lines, text) for text in cut.without)) if cut.without else set()
    written: list[str] = []
    for number, line in enumerate(lines):
        if number not in gone:
            written.append(line)
        elif number - 1 not in gone:
            written.append(f"{' ' * _depth(line)}...")
    return "\n".join(written) + "\n"


def used(cut: Cut, root: Path = ROOT) -> Cut:
    """Return the cut without the texts that match no line."""
    lines = lines_of(cut, root)
    return Cut(cut.file, cut.begin, cut.end, tuple(text for text in cut.without if left_out(lines, text)))


def refreshed(page: str, root: Path = ROOT) -> str:
    """Return the page with all its blocks cut anew."""

    def block(match: re.Match[str]) -> str:
        cut = used(parse(match["cut"]), root)
        return f"<!-- cut: {cut} -->\n```{match['language']}\n{code_of(cut, root)}```"

    return BLOCK.sub(block, page)


def main(words: list[str]) -> int:
    right = True
    for page in [Path(word) for word in words if word != "--check"] or [PAGE]:
        before = page.read_text("utf-8")
        try:
            after = refreshed(before)
        except CutError as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
        if before != after and "--check" in words:
            print(f"{page}: stale; python scripts/cut_blocks.py writes its blocks anew", file=sys.stderr)
            right = False
        elif before != after:
            page.write_text(after, "utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
