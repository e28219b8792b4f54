"""Options of argparse for a field of a dataclass: HfArgumentParser's rules, one function a rule."""

from __future__ import annotations

import dataclasses
import types
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, EnumType
from typing import Any, Literal, Union, get_args, get_origin

from fastsft.arguments.parsing.near_flags import hints

# As every command takes them.
MODEL_NAMES, DATA_NAMES = ("--model_name_or_path", "--model"), ("--data_path", "--data")

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")


def parse_bool(word: str | bool) -> bool:
    """True for yes, true, t, y, 1 and False for no, false, f, n, 0, in any case; else an argparse error."""
    if isinstance(word, bool):
        return word
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise ArgumentTypeError(
        f"Truthy value expected: got {word} but expected one of "
        "yes/no, true/false, t/f, y/n, 1/0 (case insensitive)."
    )


def _bool_or_word(word: str | bool) -> str | bool:
    """A boolean where the word is one, else the word: for fields that are a boolean or a string."""
    try:
        return parse_bool(word)
    except ArgumentTypeError:
        return word


def spellings(name: str) -> list[str]:
    """`--a_b` and `--a-b`."""
    return [f"--{name}", f"--{name.replace('_', '-')}"] if "_" in name else [f"--{name}"]


def word_type(hint: object) -> object:
    """The type that the words of a flag have, for a type hint of a field. ValueError for unions of others.

    A union with None is its other type, one with str and None its second; booleans with None stay as they
    are. A string or a boolean is both here, where HfArgumentParser takes booleans only.
    """
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    members = get_args(hint)
    none = type(None)
    if str not in members and (len(members) != 2 or none not in members):
        raise ValueError(f"only Optional[X] and unions with str can be flags, got {hint}")
    if none not in members:
        return str | bool if set(members) == {str, bool} else members[members[0] is str]
    if bool in members:
        return hint
    return members[0] if members[1] is none else members[1]


def options_of(field: dataclasses.Field[Any], hint: object) -> tuple[dict[str, Any], list[str]]:
    """argparse's keyword arguments for a field of type `hint` (see word_type), and its other spellings."""
    options = dict(field.metadata)
    aliases = options.pop("aliases", [])
    aliases = [aliases] if isinstance(aliases, str) else list(aliases)
    default = _default(field)
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        options |= {"choices": _choices(hint), **default}
        options["type"] = _by_name(options["choices"])
    elif hint in (bool, bool | None):
        options |= _boolean(field, hint)
    elif hint == str | bool:
        options |= {"type": _bool_or_word, "nargs": "?", "const": True, **default}
    elif get_origin(hint) is list:
        options |= {"type": get_args(hint)[0], "nargs": "+"}
        if field.default is dataclasses.MISSING:
            options |= default
    else:
        options |= {"type": hint, **default}
    return options, aliases


def _default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    if field.default is not dataclasses.MISSING:
        return {"default": field.default}
    if field.default_factory is not dataclasses.MISSING:
        return {"default": field.default_factory()}
    return {"required": True}


def _boolean(field: dataclasses.Field[Any], hint: object) -> dict[str, Any]:
    known = field.default is not dataclasses.MISSING
    if hint is bool or (known and field.default is not None):
        return {
            "type": parse_bool, "nargs": "?", "const": True, "default": field.default if known else False,
        }  # fmt: skip
    return {"type": parse_bool}


def _choices(hint: object) -> Sequence[object]:
    members: Iterable[Enum] = hint if isinstance(hint, EnumType) else ()
    return [member.value for member in members] or get_args(hint)


def _by_name(choices: Sequence[object]) -> Callable[[str], object]:
    """Words become the choice that they spell, whatever its type."""
    by_name = {str(choice): choice for choice in choices}
    return lambda word: by_name.get(word, word)


def _way_of_stray(word: str) -> str:
    if word.endswith((".yaml", ".yml")):
        return f"a file of flags is given as --config {word}"
    if word.endswith((".json", ".jsonl", ".parquet", ".arrow", ".csv", ".tsv", ".gz", ".zst")):
        return "several files of data are one value: --data_path a.json,b.json, or a pattern in quotes"
    return "a value with spaces needs quotes"


def unknown_words(words: Sequence[str], options: Iterable[str]) -> str:
    """Message about words that no option takes: a hint for each flag, and quotes for stray values."""
    known, strays = list(options), []
    values: dict[str, str | None] = {}
    waiting: str | None = None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values[flag], waiting = value if equals else None, None if equals else flag
            continue
        if waiting is not None:
            values[waiting] = word
        elif not word.startswith("-"):
            strays.append(f"{word!r} follows no flag; {_way_of_stray(word)}")
        waiting = None
    flags = list(values)
    said = [
        *hints(flags, known, {name: word for name, word in values.items() if word is not None}),
        *strays,
    ] or [f"{words[0]} is no flag; flags begin with two dashes"]
    return f"{'unknown flag ' if flags else ''}{'; '.join(said)}"
