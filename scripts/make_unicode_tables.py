"""Writes csrc/tokenizer/unicode/unicode_tables.inc: character classes and normalization data of `tokenizers`.

The tables begin with Python's unicodedata; where `tokenizers` (Oniguruma for the split patterns, its own NFC)
follows another version of Unicode, what `tokenizers` does is taken. At the end everything is checked over all
code points.

usage: python scripts/make_unicode_tables.py [output]
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

OUTPUT = Path(__file__).parent.parent / "csrc" / "tokenizer" / "unicode" / "unicode_tables.inc"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
NFC = normalizers.NFC().normalize_str
NFD = normalizers.NFD().normalize_str


def matched(pre_tokenizer: pre_tokenizers.PreTokenizer) -> set[int]:
    """The code points that a pre-tokenizer keeps when all stand in one text."""
    pieces = pre_tokenizer.pre_tokenize_str("".join(map(chr, CODE_POINTS)))
    return {c for _, (begin, end) in pieces for c in CODE_POINTS[begin:end]}


def matching(pattern: str) -> set[int]:
    """The code points that `pattern` matches in the split patterns of `tokenizers`."""
    return set(CODE_POINTS) - matched(pre_tokenizers.Split(Regex(pattern), "removed"))


def of_category(first: str) -> Callable[[int], bool]:
    return lambda c: unicodedata.category(chr(c)).startswith(first)


def corrected(name: str, ours: Callable[[int], bool], theirs: set[int]) -> set[int]:
    """`theirs`, with a line about how far unicodedata is from it."""
    known = {c for c in CODE_POINTS if ours(c)}
    print(
        f"{name}: {len(theirs)}; not in unicodedata {len(theirs - known)}, only there {len(known - theirs)}"
    )
    return theirs


def word_characters() -> set[int]:
    """\\w of the regex crate, by which `single_word` is decided."""
    spaces = set(CODE_POINTS) - matched(pre_tokenizers.Whitespace())
    # The pattern is \\w+|[^\\w\\s]+, so a character is one of \\w when it stays together with a letter.
    joined = "".join(f"a{chr(c)} " for c in CODE_POINTS if c not in spaces)
    pieces = pre_tokenizers.Whitespace().pre_tokenize_str(joined)
    return {ord(text[1]) for text, _ in pieces if len(text) == 2}


def reorders(c: int) -> bool:
    """Whether `tokenizers` gives the combining class of unicodedata to a code point."""
    texts = (f"a{chr(c)}\u0334", f"a\u0345{chr(c)}", f"a\u0301{chr(c)}", f"a{chr(c)}\u0301\u0345")
    return all(NFC(text) == unicodedata.normalize("NFC", text) for text in texts)


def combining_classes() -> dict[int, int]:
    """Class by code point where it is not zero; code points that are newer than `tokenizers` have none."""
    named = {c: unicodedata.combining(chr(c)) for c in CODE_POINTS if unicodedata.combining(chr(c))}
    return {c: value for c, value in named.items() if reorders(c)}


def decompositions() -> dict[int, list[int]]:
    """The canonical decomposition, one step, of each code point that `tokenizers` takes apart."""
    steps = {}
    for c in CODE_POINTS:
        step = unicodedata.decomposition(chr(c))
        if step and not step.startswith("<") and NFD(chr(c)) != chr(c):
            steps[c] = [int(part, 16) for part in step.split()]
    return steps


def compositions(steps: dict[int, list[int]]) -> list[int]:
    """The code points that their two parts become again."""
    return [c for c, step in steps.items() if len(step) == 2 and NFC(NFD(chr(c))) == chr(c)]


def ranges(members: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for c in sorted(members):
        if found and found[-1][1] == c - 1:
            found[-1] = (found[-1][0], c)
        else:
            found.append((c, c))
    return found


def class_ranges(classes: dict[int, int]) -> list[tuple[int, int, int]]:
    found = []
    for value in sorted(set(classes.values())):
        found += [(a, b, value) for a, b in ranges(c for c, v in classes.items() if v == value)]
    return sorted(found)


def table(name: str, kind: str, rows: Iterable[tuple[int, ...]]) -> str:
    lines, line = [f"inline constexpr {kind} {name}[] = {{"], "   "
    for row in rows:
        item = " {" + ", ".join(f"0x{value:X}" for value in row) + "},"
        if len(line) + len(item) > 110:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};", ""])


def normalize(
    text: str, classes: dict[int, int], steps: dict[int, list[int]], pairs: dict[tuple[int, int], int]
) -> str:
    """NFC from the tables alone, to check them (UAX 15)."""
    out: list[int] = []

    def take_apart(c: int) -> None:
        if c in HANGUL:
            index = c - 0xAC00
            parts = (0x1100 + index // 588, 0x1161 + index % 588 // 28, 0x11A7 + index % 28)
            out.extend(parts if index % 28 else parts[:2])
        elif c in steps:
            for part in steps[c]:
                take_apart(part)
        else:
            out.append(c)

    for char in text:
        take_apart(ord(char))
    begin = 0
    for i in range(len(out) + 1):
        if i == len(out) or out[i] not in classes:
            out[begin:i] = sorted(out[begin:i], key=lambda c: classes.get(c, 0))
            begin = i + 1
    return "".join(map(chr, compose(out, classes, pairs)))


def compose(parts: list[int], classes: dict[int, int], pairs: dict[tuple[int, int], int]) -> list[int]:
    done: list[int] = []
    starter = -1
    for c in parts:
        last = classes.get(done[-1], 0) if done else 0
        blocked = starter < 0 or (starter != len(done) - 1 and last >= classes.get(c, 0))
        joined = None if blocked else pair_of(done[starter], c, pairs)
        if joined is not None:
            done[starter] = joined
            continue
        if c not in classes:
            starter = len(done)
        done.append(c)
    return done


def pair_of(a: int, b: int, pairs: dict[tuple[int, int], int]) -> int | None:
    if 0x1100 <= a < 0x1113 and 0x1161 <= b < 0x1176:
        return 0xAC00 + ((a - 0x1100) * 21 + b - 0x1161) * 28
    if a in HANGUL and (a - 0xAC00) % 28 == 0 and 0x11A8 <= b < 0x11C3:
        return a + b - 0x11A7
    return pairs.get((a, b))


def check(classes: dict[int, int], steps: dict[int, list[int]], pairs: dict[tuple[int, int], int]) -> None:
    marks = (
        "{}",
        "e{}",
        "a\u0327{}\u0301",
        "{}\u0301",
        "{}\u0327\u0301",
        "\u1100\u1161{}",
        "a{}\u0334",
        "a\u0345{}",
    )
    for c in CODE_POINTS:
        for mark in marks:
            text = mark.format(chr(c))
            if normalize(text, classes, steps, pairs) != NFC(text):
                raise SystemExit(f"NFC differs for {text!a}")


def main() -> None:
    letters = corrected("letters", of_category("L"), matching(r"\p{L}"))
    numbers = corrected("numbers", of_category("N"), matching(r"\p{N}"))
    spaces = corrected("spaces", lambda c: chr(c).isspace(), matching(r"\s"))
    words = word_characters()
    classes, steps = combining_classes(), decompositions()
    composed = compositions(steps)
    check(classes, steps, {(steps[c][0], steps[c][1]): c for c in composed})
    text = "// Written by scripts/make_unicode_tables.py; do not edit.\n"
    for name, members in (("Letter", letters), ("Number", numbers), ("Space", spaces), ("Word", words)):
        text += table(f"k{name}Ranges", "CodePointRange", ranges(members))
    text += table("kCombiningRanges", "CombiningRange", class_ranges(classes))
    text += table(
        "kDecompositions", "Decomposition", [(c, *step, 0)[:3] for c, step in sorted(steps.items())]
    )
    text += table("kCompositions", "Decomposition", [(c, *steps[c]) for c in sorted(composed)])
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    output.write_text(text)


if __name__ == "__main__":
    main()
