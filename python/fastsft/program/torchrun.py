"""A program that runs torchrun without its summary of failed ranks, which print their errors themselves.

Its exit status is that of the rank that failed first (docs/signals.md); torchrun's own is always 1. It is run
by its path and imports no module of fastsft, because its environment is that of the user's script.
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
    """Run torchrun with the arguments of the command line."""
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
    """Return the status of the first failure; print a line for a killed rank, which could not print one."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return int(failure.exitcode)
    number = -int(failure.exitcode)
    with contextlib.suppress(OSError):
        print(f"error: rank {rank} was killed by {signal.Signals(number).name}", file=sys.stderr, flush=True)
    return _SIGNAL_BASE + number


if __name__ == "__main__":
    main()
