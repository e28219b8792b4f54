"""Words that documents, docstrings and comments do without, each with the plain one to write."""

from __future__ import annotations

import re
from collections.abc import Iterator

PLAIN = {
    r"behind": "after, asynchronously, below",
    r"besides?": "next to, and, except",
    r"stands?(?! on\b)|stood": "is, means",  # to stand on something is to need it
    r"lies|lie|lain|lying": "is",
    r"(?:take|takes|took|taken|taking) (?:the|its|their) place": "replace",
    r"mend|mends|mended|mending": "fix",
    r"anew|afresh": "again, from step 0",
    r"dearest": "most expensive",
    r"the whole way": "the full workflow",
    r"hangs on": "depends on",
}
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(f'({words})' for words in PLAIN)})\b", re.IGNORECASE)


def unwanted(text: str) -> Iterator[str]:
    """For each unwanted word in `text`, the word and what to write instead."""
    for match in FORBIDDEN.finditer(text):
        yield f'"{match[0]}"; write: {list(PLAIN.values())[(match.lastindex or 1) - 1]}'
