"""Render conversations with a model's own Jinja chat template, as a separate program that answers requests.

The template is untrusted: a sandbox keeps it away from Python's internals (`sandbox.py`), and this process
limits its time, memory and output. `data/chat/model_template.py` sends requests as JSON lines to standard
input; answers are JSON lines on standard output.
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

from fastsft.data.chat.rendering.conversation import read_variables
from fastsft.data.chat.rendering.program import Program
from fastsft.data.chat.rendering.sandbox import Fatal, Refused, TimeLimit

MEMORY_LIMIT = 1 << 29
_MOST_SETS = 8  # variable sets whose programs are kept; each may hold some 30 MiB of known forms
_GRACE = 6.0  # seconds; longer than the parent process waits, and needed only if the parent has ended


class Programs:
    """A program for each set of variables.

    settings: the arguments of `Program`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.plain = Program(**settings)
        self._others: dict[str, Program] = {}

    def of(self, variables: str) -> Program:
        """Return the program for the JSON text `variables`; "" for none. Refused if this is no object."""
        if not variables:
            return self.plain
        if variables not in self._others:
            if len(self._others) == _MOST_SETS:
                self._others.pop(next(iter(self._others)))
            self._others[variables] = self.plain.with_variables(read_variables(variables))
        return self._others[variables]


def _answer(programs: Programs, request: str | list[Any] | dict[str, Any], seconds: float) -> dict[str, Any]:
    _limit_computing(seconds + _GRACE)
    # The timer counts processor time, so that rendering does not fail on a busy machine.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        if request == "endings":
            return {"endings": programs.plain.endings()}
        if isinstance(request, str):
            return {"trait": programs.plain.trait(request)}
        if isinstance(request, dict) and "plain" in request:
            return {"text": programs.plain.plain_text(**request["plain"])}
        *chat, variables = request["prompt"] if isinstance(request, dict) else request
        program = programs.of(variables)
        return program.render_prompt(*chat) if isinstance(request, dict) else program.render(*chat)
    except Refused as error:
        return {"failure": str(error)}
    except Fatal as error:  # if a conversation was being rendered, only that conversation fails
        return {"fatal" if isinstance(request, str) else "failure": str(error)}
    except TimeLimit:
        return {"failure": f"the chat template takes more than {seconds:g} s"}
    except (MemoryError, RecursionError) as error:
        return {"failure": f"the conversation cannot be rendered: {type(error).__name__}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_computing(seconds: float) -> None:
    """Let the system end this process after `seconds` more of processor time, even inside an operation."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + seconds)
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def main() -> None:
    """Read a line with the settings and then requests, each on a line, and answer each with a line.

    If the parent process has ended, even in the middle of a line, exit without a message.
    """
    try:
        _serve(line for line in sys.stdin if line.endswith("\n"))
    except BrokenPipeError:
        os._exit(1)  # a normal exit would flush again and fail


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
    programs: Programs | None = None
    try:
        programs = Programs(settings)
        hello = {"has_blocks": programs.plain.has_blocks}
    except Fatal as error:
        hello = {"fatal": str(error)}  # type: ignore[dict-item]
    print(json.dumps(hello), flush=True)
    for line in lines:
        request = json.loads(line)
        if isinstance(request, dict) and "ends" in request:
            programs = Programs({**settings, **request})
            print("{}", flush=True)
        elif programs is not None:
            print(json.dumps(_answer(programs, request, seconds)), flush=True)


if __name__ == "__main__":
    main()
