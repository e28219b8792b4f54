"""The parser of a command's words: a mistake is one line, and options are written out in full."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fastsft.runtime.terminal import fitted, visible


class CommandParser(argparse.ArgumentParser):
    """argparse's, without abbreviations, and without its lines of usage before a mistake."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """One line on standard error, which names the way to the list of options; status 2."""
        line = visible(f"{self.prog}: error: {message}; {self.prog} --help lists what it takes")
        self.exit(2, f"{fitted(line, sys.stderr)}\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """All of the words; what no option takes is a mistake, with the nearest option."""
        parsed, unknown = self.parse_known_args(args, namespace)
        self.refuse(unknown)
        return parsed

    def refuse(self, unknown: Sequence[str]) -> None:
        """A mistake, unless there is no unknown word."""
        if unknown:
            words = [word for word in unknown if word.startswith("-")] or unknown  # not their values
            self.error(f"unknown: {', '.join(map(self._with_nearest, words))}")

    def _with_nearest(self, word: str) -> str:
        flag = word.partition("=")[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, 1, cutoff=0.7)
        return f"{word} (the nearest is {near[0]})" if near and flag.startswith("-") else word
