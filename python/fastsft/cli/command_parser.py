"""The argument parser and the output functions that all commands share."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from fastsft.runtime.terminal import fitted, visible


class CommandParser(argparse.ArgumentParser):
    """argparse's parser without abbreviated options, whose error messages have no usage lines."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint at --help to standard error as one line; exit with status 2."""
        line = visible(f"{self.prog}: error: {message}; {self.prog} --help lists what it takes")
        self.exit(2, f"{fitted(line, sys.stderr)}\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse all arguments; exit with an error that names unknown options and similar known options."""
        parsed, unknown = self.parse_known_args(args, namespace)
        self.refuse(unknown)
        return parsed

    def refuse(self, unknown: Sequence[str]) -> None:
        """Exit with an error that names the arguments in `unknown`; do nothing if `unknown` is empty."""
        if unknown:
            # name the options, but not their values
            options = [arg for arg in unknown if arg.startswith("-")] or unknown
            self.error(f"unknown: {', '.join(map(self._with_nearest, options))}")

    def _with_nearest(self, option: str) -> str:
        flag = option.partition("=")[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, 1, cutoff=0.7)
        return f"{option} (the nearest is {near[0]})" if near and flag.startswith("-") else option


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
