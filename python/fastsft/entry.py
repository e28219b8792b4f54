"""Running a script function as a program: mistakes of the user end in a sentence, not in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fastsft import launcher

EXIT_USER_ERROR = 1


def run_script(script: Callable[[], None]) -> None:
    """Call `script` and close the process groups. ValueError leaves with status 1 and its message on stderr.

    Other exceptions keep their traceback. On several ranks each line names its rank.
    """
    place = launcher.launch()
    try:
        script()
    except ValueError as error:
        who = f"rank {place.rank}: " if place.world_size > 1 else ""
        print(f"{who}error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_USER_ERROR) from None
    launcher.leave()
