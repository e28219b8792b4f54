"""Derives argparse options and actions from a dataclass's fields, by HfArgumentParser's rules."""

from __future__ import annotations

import dataclasses
import types
import weakref
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, EnumType
from typing import Any, Literal, Union, get_args, get_origin

MODEL_NAMES, DATA_NAMES = ("--model_name_or_path", "--model"), ("--data_path", "--data")

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")


def parse_bool(word: str | bool) -> bool:
    """Return True for yes, true, t, y and 1, and False for no, false, f, n and 0, in upper or lower case.

    ArgumentTypeError for other words.
    """
    if isinstance(word, bool):
        return word
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise ArgumentTypeError(f"expected True or False (yes/no, t/f, y/n and 1/0, too), got {word!r}")


def _bool_or_word(word: str | bool) -> str | bool:
    """Convert a word for a `str | bool` field to a boolean if `parse_bool` accepts the word."""
    try:
        return parse_bool(word)
    except ArgumentTypeError:
        return word


def spellings(name: str) -> list[str]:
    """Return the flags of the field `name`: `--a_b` and `--a-b` for a_b."""
    return [f"--{name}", f"--{name.replace('_', '-')}"] if "_" in name else [f"--{name}"]


def word_type(hint: object) -> object:
    """Return the type to which a flag's words are converted.

    hint: the type hint of its field. `X | None` becomes X, but `bool | None` is returned unchanged. A union
    of str, another type and None becomes its second type. `str | bool` accepts both types, whereas
    HfArgumentParser accepts only booleans. ValueError for other unions.
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
    """Return argparse's keyword arguments for a field, and its aliases. hint: its type, from `word_type`."""
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
    has_default = field.default is not dataclasses.MISSING
    if hint is bool or (has_default and field.default is not None):
        default = field.default if has_default else False
        return {"type": parse_bool, "nargs": "?", "const": True, "default": default}
    return {"type": parse_bool}


def _choices(hint: object) -> Sequence[object]:
    members: Iterable[Enum] = hint if isinstance(hint, EnumType) else ()
    return [member.value for member in members] or get_args(hint)


def _by_name(choices: Sequence[object]) -> Callable[[str], object]:
    """Return a function that converts a word to the choice with the same text, whatever the choice's type."""
    by_name = {str(choice): choice for choice in choices}
    return lambda word: by_name.get(word, word)


# The namespace whose flags were recorded last (a weak reference), and the names of the recorded fields. The
# namespace lives only as long as its parser works.
_last: tuple[weakref.ref[Namespace], set[str]] | None = None


class FieldAction(Action):
    """argparse's action `store`, which also records the field for `fields_on_line`.

    Field metadata names this class, so transformers' HfArgumentParser passes it to argparse, too.
    """

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        _record(namespace, self.dest)


class WordsAction(FieldAction):
    """Action of a field with `several_words`: stores one word as str, several words as list."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = values or ()
        super().__call__(parser, namespace, words[0] if len(words) == 1 else values, option_string)


class NoFieldAction(FieldAction):
    """Action of `--no_a_b`, which stores False and records the field."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=False, **options)

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, self.const, option_string)


def fields_on_line(namespace: Namespace | None = None) -> frozenset[str]:
    """Return the fields whose flags were given on the command line that was parsed into `namespace`.

    namespace: None for the namespace of the parser that is now working, if any.
    """
    latest = _last[0]() if _last is not None else None
    is_this = latest is not None and (namespace is None or namespace is latest)
    return frozenset(_last[1]) if _last is not None and is_this else frozenset()


def _record(namespace: Namespace, name: str) -> None:
    global _last
    if _last is None or _last[0]() is not namespace:
        _last = (weakref.ref(namespace), set())
    _last[1].add(name)
