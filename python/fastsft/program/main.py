"""A function as a command-line program. Errors that the user can fix print one line without traceback."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from fastsft.program.error_file import write_error_file
from fastsft.program.self_launch import ranks_to_start, start_ranks
from fastsft.ranks import process_group as launcher
from fastsft.ranks.launcher_watch import launcher_watch
from fastsft.ranks.rendezvous import meeting_name
from fastsft.ranks.store import tell_waiting_ranks, wait_for_leaving_ranks
from fastsft.reporting.status import EVENTS_VARIABLE
from fastsft.runtime.errors import RunStoppedError, raise_at_interrupt
from fastsft.runtime.file_calls import explained, is_resource_limit
from fastsft.runtime.launch import PlaceError, launch_or_alone, only_own_code
from fastsft.runtime.near_names import missing_hint
from fastsft.runtime.terminal import fitted, make_best_effort, say, visible
from fastsft.runtime.ways_out import reading_advice, with_way_out
from fastsft.trainer.signals import EXIT_BASE, StartGuard

EXIT_ERROR = 1
EXIT_PEER_LOST = 3
_OUT_OF_MEMORY = "error: out of memory; give the run more, or smaller records and batches"


def run_script(script: Callable[[], object], *, runs_scripts: bool = True) -> None:
    """Call `script`, then close the process groups. Exit statuses: docs/signals.md.

    Without a launcher, first start one rank per GPU (program/self_launch.py). runs_scripts: False if only
    fastsft's own code runs, so that a Trainer need not look for patches.

    After a ValueError, a full disk or a refusal by the operating system, print one line on stderr and exit
    with status 1. After another rank was lost or has failed, print one line and exit with status 3. After
    other exceptions, print the traceback and exit with status 1. With several ranks, each line names the
    rank, and a failed rank exits without cleanup, which would wait for the other ranks.
    """
    raise_at_interrupt()
    make_best_effort()
    gc.freeze()  # exempts torch's objects from garbage collection at exit, which saves 0.2 s
    guard = StartGuard(is_said=EVENTS_VARIABLE not in os.environ)
    with contextlib.ExitStack() as watching:
        try:
            watching.enter_context(guard)
            watching.enter_context(launcher_watch())
            if (ranks := ranks_to_start(sys.argv[1:])) > 1:
                start_ranks(ranks)
            with contextlib.nullcontext() if runs_scripts else only_own_code():
                script()
        except SystemExit as error:
            if launch_or_alone().world_size > 1:
                _end_process(error.code)
            raise
        except PlaceError as error:
            write_error_file(line := f"error: {error}")
            say(_for_terminal(line), to_stderr=True)
            with contextlib.suppress(KeyboardInterrupt):
                tell_waiting_ranks(str(error), meeting_name(0))
            _leave(EXIT_ERROR, "")
        except ValueError as error:
            _leave(EXIT_ERROR, f"{_who()}error: {error}")
        except KeyboardInterrupt:
            os._exit(_flushed(EXIT_BASE + 2, "interrupted: not saved; the same command resumes"))
        except MemoryError:
            _leave(EXIT_ERROR, f"{_who()}{_OUT_OF_MEMORY}")
        except RunStoppedError as error:
            first = launch_or_alone().rank == 0
            _leave(error.exit_status, f"error: {error}" if first else "")
        except RuntimeError as error:
            if guard.leaving:
                _leave(EXIT_BASE + guard.leaving, "")
            _end_of_runtime_error(error)
        except OSError as error:
            _end_of_os_error(error)
        except Exception:
            _fail()
    launcher.leave()


def _end_of_runtime_error(error: RuntimeError) -> None:
    """End the process as the kind of error demands. Called in an except clause."""
    if _is_of_memory(error):
        _leave(EXIT_ERROR, f"{_who()}{_OUT_OF_MEMORY}: {str(error).splitlines()[0]}")
    if type(error).__name__ == "AcceleratorError":
        # The device is unusable now. Destructors that free device memory would abort the process.
        write_error_file(line := f"error: {_device_failure(error)}")
        os._exit(_flushed(EXIT_ERROR, _for_terminal(line)))
    if _is_of_peers(error):
        # Exit without cleanup, because the process groups would wait for ranks that are gone.
        os._exit(_flushed(EXIT_PEER_LOST, _for_terminal(f"error: {error}")))
    if _is_refusal(error):
        _leave(EXIT_ERROR, f"{_who()}error: {error}")
    _fail()


def _end_of_os_error(error: OSError) -> None:
    """End the process with the file's name, if the error has one. Called in an except clause."""
    if error.errno is None or (error.filename is None and not is_resource_limit(error)):
        _fail()
    place = _place_of(error) if error.filename is None else os.fsdecode(error.filename)
    told = explained(error, "go on", place) if is_resource_limit(error) else error
    is_missing = error.errno == errno.ENOENT and error.filename is not None
    way = missing_hint(place) if is_missing else reading_advice(error)
    _leave(EXIT_ERROR, f"{_who()}error: {place}: {with_way_out(str(told.strerror), way)}")


def _place_of(error: OSError) -> str:
    """Return the name of the fastsft function whose system call failed, for errors without a file name."""
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__) if "fastsft" in frame.filename]
    return f"in {names[-1]}" if names else "this process"


def _leave(status: int, line: str) -> None:
    if line:
        write_error_file(line)
    if launch_or_alone().world_size > 1:
        _end_rank(status, _for_terminal(line))
    if line:
        say(_for_terminal(line), to_stderr=True)
    raise SystemExit(status) from None


def _for_terminal(line: str) -> str:
    return fitted(visible(line), sys.stderr)


def _end_process(code: object) -> NoReturn:
    """End one of several ranks after a SystemExit, without finalizing the Python interpreter.

    A gloo thread frees a tensor shortly after a collective. If the thread then asks a finalized interpreter
    for the GIL, the process aborts. The process groups stay open, because closing them would wait for ranks
    that go on.
    """
    line = "" if code is None or isinstance(code, int) else str(code)
    if line:
        say(visible(line), to_stderr=True)
    launcher.stay()
    # multiprocessing ends its child processes with the same calls.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _end_rank(code & 0xFF if isinstance(code, int) else int(bool(line)), "")


def _fail() -> None:
    """Print this rank's traceback and end the process. Called in an except clause."""
    if launch_or_alone().world_size == 1:
        raise
    text = f"{_who()}failed\n{traceback.format_exc()}"
    write_error_file(text)
    _end_rank(EXIT_ERROR, visible(text))


def _end_rank(status: int, line: str) -> NoReturn:
    """Print `line` on stderr, and end one of several ranks without finalizing the Python interpreter."""
    _flushed(status, line)
    if status:
        with contextlib.suppress(OSError):  # torch's client prints a C++ trace if the store is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        wait_for_leaving_ranks()
    os._exit(status)


def _flushed(status: int, line: str) -> int:
    if line:
        say(line, to_stderr=True)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return status


def _who() -> str:
    place = launch_or_alone()
    return f"rank {place.rank}: " if place.world_size > 1 else ""


def _is_of_peers(error: RuntimeError) -> bool:
    from fastsft import _C

    return isinstance(error, _C.CollectiveError | _C.PeerFailedError)


def _is_refusal(error: RuntimeError) -> bool:
    """True if the operating system refused a request: no disk space left, or too many threads."""
    from fastsft import _C

    return isinstance(error, _C.FileError | _C.ThreadDeniedError)


def _device_failure(error: RuntimeError) -> str:
    from fastsft import _C

    return str(_C.device_failure(str(error)))


def _is_of_memory(error: RuntimeError) -> bool:
    """True if this rank is out of memory. torch's CPU errors have no class, and are known by their text."""
    from fastsft import _C

    if type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return not isinstance(error, _C.PeerFailedError) and (
        "DefaultCPUAllocator: " in text or "Cannot allocate memory" in text
    )
