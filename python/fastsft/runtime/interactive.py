"""Detect notebooks and interactive prompts, and shorten tracebacks in notebook cells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
_PACKAGE = str(Path(__file__).resolve().parents[1])


def is_notebook() -> bool:
    """True if this process runs a notebook's cells."""
    return getattr(_shell(), "kernel", None) is not None


def is_interactive() -> bool:
    """True at an interactive prompt of Python or IPython, or in a notebook; a SystemExit would close it."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _shell() is not None


def _shell() -> object:
    """Return IPython's shell, or None. This function does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def short_in_cells(
    *kinds: type[BaseException],
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Return a decorator that removes fastsft's frames from the tracebacks of some errors in notebooks.

    kinds: the error classes, whose message is enough for the user. Frames of other code, such as a script's
    callback, are kept. The error's cause is dropped if no frame is left.
    """

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except kinds as error:
                if not is_notebook():
                    raise
                trace = _joined(_frames_of_others(error.__traceback__))
                if trace is None:
                    error.__cause__, error.__suppress_context__ = None, True
                raise error.with_traceback(trace)  # noqa: B904  the same error

        return called

    return decorated


def _frames_of_others(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            yield trace
        trace = trace.tb_next


def _joined(entries: Iterator[TracebackType]) -> TracebackType | None:
    last = None
    for entry in reversed(list(entries)):
        last = TracebackType(last, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return last
