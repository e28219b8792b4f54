"""A program that runs torchrun without the summary of failed ranks, since ranks print their own errors.

The exit status is the status of the rank that failed first (docs/signals.md), whereas torchrun's status is
always 1. The program is run by its path and imports no fastsft module, because it has the environment of the
user's script.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_SIGNAL_BASE = 128


def main() -> None:
    """Run torchrun with the command-line arguments."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logging.disable(logging.CRITICAL)
    try:
        torchrun()
    except ChildFailedError as error:
        raise SystemExit(_status(error)) from None
    except SignalException as error:
        raise SystemExit(_SIGNAL_BASE + int(error.sigval)) from None
    except Exception as error:
        raise SystemExit(f"error: the ranks cannot be started: {type(error).__name__}: {error}") from None


def _status(error: ChildFailedError) -> int:
    """Return the exit status for the first failure. Print a message for a killed rank, which printed none."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return int(failure.exitcode)
    number = -int(failure.exitcode)
    with contextlib.suppress(OSError):
        print(f"error: rank {rank} was killed by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    return _SIGNAL_BASE + number


if __name__ == "__main__":
    main()
