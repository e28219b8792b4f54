"""Actions of argparse for the flags of fields: they store the value, and note that the flag was given."""

from __future__ import annotations

import weakref
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

# The namespace that flags were stored in last, and their fields. It lives as long as it is parsed into.
_last: tuple[weakref.ref[Namespace], set[str]] | None = None


class FieldAction(Action):
    """Argparse's `store`, noted: `fields_on_line` tells a flag that was given from a default.

    In the metadata of a field it also serves transformers' HfArgumentParser, which hands them to argparse.
    """

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """argparse calls it for a flag that is there, and for no default."""
        setattr(namespace, self.dest, values)
        _note(namespace, self.dest)


class NoFieldAction(FieldAction):
    """`--no_a_b`: stores False, noted."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=False, **options)

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """As of `FieldAction`."""
        super().__call__(parser, namespace, self.const, option_string)


def fields_on_line(namespace: Namespace | None = None) -> frozenset[str]:
    """The fields whose flags were stored in `namespace`; None: in the one that a parser is at work on."""
    found = _last[0]() if _last is not None else None
    is_this = found is not None and (namespace is None or namespace is found)
    return frozenset(_last[1]) if _last is not None and is_this else frozenset()


def _note(namespace: Namespace, name: str) -> None:
    global _last
    if _last is None or _last[0]() is not namespace:
        _last = (weakref.ref(namespace), set())
    _last[1].add(name)
