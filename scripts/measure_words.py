"""Print figures of the English in docstrings and comments, or draw sentences for a reader to grade.

usage: python scripts/measure_words.py [--draw N | --names] [--seed S] [TREE ...]

The table has a column for each checkout (default: the repository), and the values of nanotron, trl,
safetensors, llm.c, llmq and CTranslate2. Spans of `code` are no words. The figures describe; a sentence is
good if a stranger reads it once. So `--draw` prints N random docstrings and comments with their places, to be
graded clear, clear at the second reading, or unclear. `--names` counts the identifiers that
`docs/glossary.md` replaces.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPP_SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
CODE_SPAN = re.compile(r"(`+)(?:(?!\1).)+\1")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
# A comment, or what may hold `//` without being one: a string (raw ones, too) or a character.
CPP_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
GLOSSARY = Path("docs", "glossary.md")
PREPOSITIONS = frozenset(
    re.findall(
        r"\w+",
        "of as from to in by with without where after before through for on at into over under until",
    )
)
# First words of function docstrings in these checkouts, and of ours. "true": "True if ..."
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
        accept accumulate add allocate append apply archive ask assert attach average begin bind bound
        broadcast build call cast change check choose clean clear close collect combine compare compile
        compute concatenate configure connect convert copy count create decode delete describe detach
        determine discard download draw drop emit enable encode end ensure enter evaluate exit expand
        export extract fill filter find finish fit flatten flush fold format forward free gather
        generate get give group handle hash hide hold identify ignore import initialize insert install
        invoke join keep label launch leave limit list load log look make mark match measure merge
        modify move multiply name normalize note notify open order pack pad parse pass patch perform
        pick place plan plot point prepare print process propagate pull put quantize raise read
        recompute record reduce refuse register release remove rename render repeat replace report reset
        resolve restore resume return rotate round run sample save say scale schedule search select send
        set shard shift show shuffle skip sort split start stop store stream strip sum switch sync
        synchronize take tell test tokenize track train translate true try turn unwrap update upload use
        validate verify wait walk warn wrap write yield zero
        """,
    )
)
FEW_WORDS = 3
COUNTED = ("of", "what", "one", "where", "it")
ANCHORS = {
    "docstrings that begin with a preposition": "0 to 0.3%",
    f"docstrings of at most {FEW_WORDS} words": "",
    "function docstrings that begin with a verb": "25 to 100%",
    "`of` in 1,000 words": "4 to 16",
    "`what` in 1,000 words": "0 to 0.4",
    "`one` in 1,000 words": "1 to 2.6",
    "`where` in 1,000 words": "0.4 to 1",
    "`it` in 1,000 words": "1 to 4.8",
}


def replaced_names(root: Path) -> list[str]:
    """Return the names in the last column of the glossary's tables."""
    rows = re.findall(r"^\| .* \|$", (root / GLOSSARY).read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.rsplit("|", 2)[1])]


def replaced_uses(root: Path) -> Counter[str]:
    """Count the identifiers of `python` and `csrc` that the glossary replaces."""
    names = set(replaced_names(root))
    return Counter(name for name in identifiers(root) if name in names)


def identifiers(root: Path) -> Iterator[str]:
    """Yield the identifiers of all sources, without comments and strings."""
    for path in sources(root):
        source = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            yield from (token.string for token in tokens if token.type == tokenize.NAME)
        else:
            yield from re.findall(r"[A-Za-z_]\w*", CPP_TOKEN.sub(" ", source))


def sources(root: Path) -> list[Path]:
    """Return the files of `python` and `csrc` below `root`; of the whole tree without them."""
    folders = [root / name for name in ("python", "csrc") if (root / name).is_dir()] or [root]
    suffixes = (".py", *CPP_SUFFIXES)
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)


@dataclass(frozen=True)
class Text:
    """A docstring or comment. kind: "module", "class", "function" or "comment"."""

    path: Path
    line: int
    kind: str
    text: str

    @property
    def words(self) -> list[str]:
        return [word.lower() for word in WORD.findall(CODE_SPAN.sub(" ", self.text))]


@dataclass
class Figures:
    """Counts over the texts of a checkout."""

    docstrings: int = 0
    prepositions: int = 0
    few: int = 0
    functions: int = 0
    verbs: int = 0
    words: Counter[str] = field(default_factory=Counter)

    def per_thousand(self, word: str) -> float:
        """Return how often `word` is among 1,000 words; 0 without words."""
        return 1000 * self.words[word] / max(1, self.words.total())


def docstrings(path: Path) -> Iterator[Text]:
    kinds = {ast.Module: "module", ast.ClassDef: "class"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Text(path, node.body[0].lineno, kinds.get(type(node), "function"), text)


def python_comments(path: Path) -> Iterator[Text]:
    """Yield comments; those on consecutive lines are one text."""
    collected: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if collected and line != last + 1:
            yield Text(path, first, "comment", "\n".join(collected))
            collected = []
        first = line if not collected else first
        collected.append(token.string.lstrip("#! "))
        last = line
    if collected:
        yield Text(path, first, "comment", "\n".join(collected))


def cpp_comments(path: Path) -> Iterator[Text]:
    """Yield comments; those on consecutive lines are one text."""
    source = path.read_text(encoding="utf-8")
    collected: list[str] = []
    first = last = 0
    for token in CPP_TOKEN.finditer(source):
        if not token["comment"]:
            continue
        line = source.count("\n", 0, token.start()) + 1
        if collected and line != last + 1:
            yield Text(path, first, "comment", "\n".join(collected))
            collected = []
        first = line if not collected else first
        collected.append(re.sub(r"^\s*(?://+|/\*+|\*+/?)\s?|\*/$", "", token["comment"], flags=re.MULTILINE))
        last = line + token["comment"].count("\n")
    if collected:
        yield Text(path, first, "comment", "\n".join(collected))


def texts(root: Path) -> list[Text]:
    """Return the docstrings and comments of all sources."""
    found: list[Text] = []
    for path in sources(root):
        found += [*docstrings(path), *python_comments(path)] if path.suffix == ".py" else cpp_comments(path)
    return found


def measure(found: list[Text]) -> Figures:
    """Count what the table shows."""
    figures = Figures()
    for each in found:
        words = each.words
        figures.words.update(words)
        if each.kind == "comment" or not words:
            continue
        figures.docstrings += 1
        figures.prepositions += words[0] in PREPOSITIONS
        figures.few += len(words) <= FEW_WORDS
        if each.kind == "function":
            figures.functions += 1
            figures.verbs += words[0] in VERBS
    return figures


def column(figures: Figures) -> list[str]:
    """Return the values of the table's rows."""

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole} ({100 * part / max(1, whole):.1f}%)"

    return [
        share(figures.prepositions, figures.docstrings),
        str(figures.few),
        share(figures.verbs, figures.functions),
        *(f"{figures.per_thousand(word):.1f}" for word in COUNTED),
    ]


def table(roots: list[Path]) -> str:
    """Return the Markdown table, a column for each checkout."""
    columns = [list(ANCHORS), *(column(measure(texts(root))) for root in roots), list(ANCHORS.values())]
    head = ["figure", *(root.resolve().name for root in roots), "others"]
    rows = [head, ["---"] * len(head), *map(list, zip(*columns, strict=True))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def drawn(roots: list[Path], count: int, seed: int) -> str:
    """Return `count` random docstrings and comments with their places, equal for equal seeds."""
    found = [(root, each) for root in roots for each in texts(root) if len(each.words) > FEW_WORDS]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    return "\n".join(
        f"{number}. {each.path.relative_to(root)}:{each.line}: {' '.join(each.text.split())}"
        for number, (root, each) in enumerate(chosen, 1)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="checkouts; default: this one")
    parser.add_argument("--draw", type=int, metavar="N", help="print N random texts instead of the table")
    parser.add_argument("--names", action="store_true", help="count the names that the glossary replaces")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; default: 0")
    options = parser.parse_args()
    roots = options.trees or [ROOT]
    if options.names:
        for root in roots:
            uses = replaced_uses(root)
            print(
                f"{root.resolve().name}: {uses.total()}",
                *(f"{n} {name}" for name, n in uses.most_common()),
                sep="\n",
            )
    else:
        print(drawn(roots, options.draw, options.seed) if options.draw else table(roots))
    return 0


if __name__ == "__main__":
    sys.exit(main())
