"""The argument parser and the output functions that all commands share."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from fastsft.arguments.help import argument_rows
from fastsft.arguments.parsing.foreign_flags import place_names
from fastsft.arguments.parsing.hints import clearer, unknown_words
from fastsft.runtime.terminal import fitted, visible

# Names of flags, here and in other programs, for what the commands take as places
_OF_PLACES = {
    *place_names(), "input", "in", "input_file", "out", "target", "base", "adapter", "adapter_path", "lora",
    "lora_model", "dir", "directory", "path", "file", "name", "recipe", "checkpoint", "source", "format",
}  # fmt: skip


class CommandParser(argparse.ArgumentParser):
    """argparse's parser without abbreviated options, whose error messages have no usage lines.

    word_flag: the flag that a word without a flag probably lacks, for messages.
    """

    def __init__(self, *args: Any, word_flag: str = "", **kwargs: Any) -> None:
        self.word_flag = word_flag
        self._words: list[str] = []
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint at --help to standard error as one line; exit with status 2."""
        said = clearer(self._missing(message), self._words, self._option_string_actions)
        line = visible(f"{self.prog}: error: {said}; {self.prog} --help lists what it takes")
        self.exit(2, f"{fitted(line, sys.stderr)}\n")

    def _missing(self, message: str) -> str:
        """Return the message about required arguments with the words to write; others unchanged."""
        if not message.startswith("the following arguments are required"):
            return message
        names = message.partition(": ")[2].split(", ")
        missing = [action for action in self._actions if argparse._get_action_name(action) in names]
        needed = [action for action in self._actions if action.required]
        words = {_words_of(action): action in missing for action in needed}
        expected = " and ".join(word for word, is_missing in words.items() if is_missing)
        return f"expected {expected}, got none; write {self.prog} {' '.join(words)}"

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does; keep the words for messages."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._words, namespace)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all arguments; exit with an error that names unknown options and similar known options.

        Unknown options are reported before missing ones, which may be misspelt.
        """
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        _, unknown = self.parse_known_args(args)
        self.refuse(unknown)
        for action in required:
            action.required = True
        return self.parse_known_args(args, namespace)[0]

    def refuse(self, unknown: Sequence[str]) -> None:
        """Exit with an error that names the arguments in `unknown`; do nothing if `unknown` is empty."""
        if not unknown:
            return
        if self.word_flag and not any(word.startswith("-") for word in unknown):
            self.error(f"{unknown[0]!r} follows no flag; write {self.word_flag} {shlex.quote(unknown[0])}")
        if flags := self._flags_of_places(unknown):
            places = [_words_of(action) for action in self._actions if not action.option_strings]
            named = ", ".join(f"--{flag}" for flag in flags)
            self.error(f"unknown flag {named}: write its value alone, as in {self.prog} {' '.join(places)}")
        fields = {row.name for row in argument_rows()}
        self.error(unknown_words(unknown, self._option_string_actions, fields))

    def _flags_of_places(self, unknown: Sequence[str]) -> list[str]:
        """Return the names of unknown flags that mean places, and are no beginning of a known flag."""
        if all(action.option_strings for action in self._actions):
            return []
        known = [_flag_name(option) for option in self._option_string_actions]
        flags = [flag for flag in map(_flag_name, unknown) if flag in _OF_PLACES]
        return [flag for flag in flags if not any(name.startswith(flag) for name in known)]


def _flag_name(word: str) -> str:
    """Return the name of a flag without its hyphens and value; "" for other words."""
    return word.partition("=")[0].lstrip("-").replace("-", "_") if word.startswith("-") else ""


def _words_of(action: argparse.Action) -> str:
    """Return a required argument as in a command: --flag NAME, or a place's name."""
    if action.option_strings:
        return f"{action.option_strings[0]} {str(action.metavar or action.dest).upper()}"
    return "|".join(action.choices) if action.choices else str(action.metavar or action.dest)


def print_error(command: str, error: object) -> None:
    """Print an error of a command to standard error, with control characters escaped."""
    print_line(fitted(f"fastsft {command}: {visible(str(error))}", sys.stderr), sys.stderr)


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Print a line to `stream` (default: standard output); escape characters that its encoding lacks.

    A closed pipe is no error.
    """
    to = stream or sys.stdout
    if isinstance(to, io.TextIOWrapper):
        to.reconfigure(errors="backslashreplace")
    try:
        print(text, file=to, flush=True)
    except BrokenPipeError:
        # Otherwise the interpreter would flush the stream at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
