"""Messages about values that a flag or a key of a file cannot take: the expected, the given, the nearest."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from fastsft.runtime.near_names import nearest_text

_OF_FLAG = re.compile(r"argument (-[^:/]+)(?:/[^:]+)?: (.*)", re.S)
_WITHOUT_VALUE = re.compile(r"argument (-[^:]+): expected (?:one|at least one) argument")
_EXCLUDED = re.compile(r"not allowed with argument (-[^/]+)")
_WRONG_NUMBER = re.compile(r"invalid (int|float) value: (['\"])(.*)\2$", re.S)
_WRONG_CHOICE = re.compile(r"invalid choice: (['\"]?)(.*?)\1 \(choose from (.*)\)$", re.S)
_OTHER_MINUS = str.maketrans("\u2013\u2014\u2212", "---")
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)[kK]")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
# other words for dtypes -> torch's
DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "f16": "float16", "fp32": "float32",
    "f32": "float32", "float": "float32",
}  # fmt: skip


def dtype_name(word: str) -> str:
    """Return torch's name of a dtype, such as bfloat16 for bf16; other words unchanged."""
    return DTYPES.get(word.lower(), word)


def of_argparse(message: str, words: Sequence[str] = (), options: Collection[str] = ()) -> str:
    """Return argparse's message about a flag's value, with the expected value and the nearest possible value.

    Messages about other mistakes are returned unchanged. words: the command line. options: the known flags.
    """
    if (minus := _with_minus(message, words, options)) is not None:
        return minus
    if (found := _OF_FLAG.match(message)) is not None:
        return f"{found[1]}: {_of_value(found[2])}"
    return _of_value(message)


def _with_minus(message: str, words: Sequence[str], options: Collection[str]) -> str | None:
    """Return the message about a value that argparse takes for a flag, such as -5GiB; None for others."""
    found = _WITHOUT_VALUE.match(message)
    flags = found[1].split("/") if found else []
    for flag, value in pairwise(words):
        if flag in flags and value.startswith("-") and value.partition("=")[0] not in options:
            way = f"write {flag}={value} for a value that begins with a hyphen"
            return f"{flag}: expected a value, got {value!r}, which has the form of a flag; {way}"
    return None


def _of_value(text: str) -> str:
    if (found := _WRONG_NUMBER.match(text)) is not None:
        return wrong_number(found[3], int if found[1] == "int" else float)
    if (found := _WRONG_CHOICE.search(text)) is not None:
        choices = [choice.strip().strip("'\"") for choice in found[3].split(",")]
        return text[: found.start()] + wrong_choice(found[2], choices)
    if (other := _EXCLUDED.match(text)) is not None:
        return f"expected this flag or {other[1]}, got both; leave one of the two out"
    text = text.replace("expected at least one argument", "expected at least one value, got none")
    return text.replace("expected one argument", "expected a value, got none")


def wrong_choice(word: object, choices: Iterable[object]) -> str:
    """Return the message that `word` is none of `choices`."""
    names = [str(choice) for choice in choices]
    near = nearest_text(dtype_name(str(word)), names)
    return f"expected one of {', '.join(names)}, got {str(word)!r}{near}"


def wrong_number(word: str, kind: Callable[[str], float]) -> str:
    """Return the message that `word` is no number. kind: int for whole numbers alone, else float."""
    expected = "a whole number" if kind is int else "a number, such as 0.1 or 1e-5"
    if word in ("", "="):
        return f"expected {expected}, got {word!r}; leave out spaces around the ="
    way = _meant(word, kind)
    if word.strip().lower() in ("none", "null"):
        return f"expected {expected}, got {word!r}; leave it out"
    return f"expected {expected}, got {word!r}" + (f"; write {way}" if way else "")


def _meant(word: str, kind: Callable[[str], float]) -> str:
    """Return the number that a word probably means; "" if that is unknown."""
    plain = word.translate(_OTHER_MINUS).strip().rstrip(",;")
    if (found := _PERCENT.fullmatch(plain)) is not None:
        return f"{float(found[1]) / 100:g}" if kind is float else ""
    if (found := _THOUSANDS.fullmatch(plain)) is not None:
        return f"{float(found[1]) * 1024:.0f} or {float(found[1]) * 1000:.0f}"
    if kind is int and re.fullmatch(r"\d{1,3}(,\d{3})+", plain):
        plain = plain.replace(",", "")
    elif re.fullmatch(r"-?\d+,\d+", plain):
        plain = plain.replace(",", ".")  # a decimal comma
    try:
        number = float(plain)
    except ValueError:
        return ""
    if kind is int:
        return f"{number:.0f}" if number.is_integer() else ""
    return plain
