"""Renders conversations with a model's own Jinja chat template; runs in a process of its own.

The template comes from a model directory and is not trusted: a sandbox keeps it from Python's insides
(`sandbox.py`), and this process keeps its time, memory and output within limits. Imports nothing but
jinja2 and the standard library. Speaks JSON lines over its standard input and output; `template.py` is the
other end.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from fastsft.data.chat.rendering.program import Program
from fastsft.data.chat.rendering.sandbox import Fatal, Refused, TimeLimit

MEMORY_LIMIT = 1 << 29
_GRACE = 6.0  # more than the other end has patience, which may be gone


def _answer(program: Program, request: str | list[Any] | dict[str, Any], seconds: float) -> dict[str, Any]:
    _limit_computing(seconds + _GRACE)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of computing: a busy machine makes no render fail
    try:
        if request == "endings":
            return {"endings": program.endings()}
        if isinstance(request, str):
            return {"trait": program.trait(request)}
        if isinstance(request, dict):
            return program.render_prompt(*request["prompt"])
        return program.render(*request)
    except Refused as error:
        return {"failure": str(error)}
    except Fatal as error:  # of a conversation: it is left out by its name, and others are rendered
        return {"fatal" if isinstance(request, str) else "failure": str(error)}
    except TimeLimit:
        return {"failure": f"the chat template takes more than {seconds:g} s"}
    except (MemoryError, RecursionError) as error:
        return {"failure": f"the conversation cannot be rendered: {type(error).__name__}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_computing(seconds: float) -> None:
    """Let the system end this process once it has computed for so long: no timer ends one operation."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def main() -> None:
    """Read the settings, then a request a line; answer each with a line.

    Leaves without a word when the run is gone: it may have been killed in the middle of a line.
    """
    try:
        _serve(line for line in sys.stdin if line.endswith("\n"))
    except BrokenPipeError:
        os._exit(1)  # the interpreter would write the rest once more


def _serve(lines: Iterator[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))

    def on_alarm(*_: object) -> None:
        raise TimeLimit

    signal.signal(signal.SIGPROF, on_alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (first := next(lines, None)) is None:
        return
    settings = json.loads(first)
    seconds = settings.pop("seconds")
    _limit_computing(seconds + _GRACE)
    program: Program | None = None
    try:
        program = Program(**settings)
        hello = {"has_blocks": program.has_blocks}
    except Fatal as error:
        hello = {"fatal": str(error)}  # type: ignore[dict-item]
    print(json.dumps(hello), flush=True)
    for line in lines:
        if program is not None:
            print(json.dumps(_answer(program, json.loads(line), seconds)), flush=True)


if __name__ == "__main__":
    main()
