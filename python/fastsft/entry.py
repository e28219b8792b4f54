"""Running a script function as a program: mistakes of the user end in a sentence, not in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from fastsft import launcher

EXIT_USER_ERROR = 1
EXIT_PEER_LOST = 3


def run_script(script: Callable[[], None]) -> None:
    """Call `script` and close the process groups. ValueError leaves with status 1 and its message on stderr.

    When ranks lose each other the status is 3, with one line about it; other exceptions keep their traceback.
    On several ranks each line names its rank.
    """
    place = launcher.launch()
    try:
        script()
    except ValueError as error:
        who = f"rank {place.rank}: " if place.world_size > 1 else ""
        print(f"{who}error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_USER_ERROR) from None
    except RuntimeError as error:
        if not _is_collective(error):
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        # Without cleaning up: the process groups would wait for ranks that are gone.
        os._exit(EXIT_PEER_LOST)
    launcher.leave()


def _is_collective(error: RuntimeError) -> bool:
    from fastsft import _C

    return isinstance(error, _C.CollectiveError)
