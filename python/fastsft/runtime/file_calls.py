"""Make system calls that change files: retry after transient errors, and add advice to other errors.

If a file that should be removed is protected, a line is printed and the run continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from fastsft.runtime.messages import tell_once

_Result = TypeVar("_Result")

_PASSES = (errno.EIO, errno.ESTALE)  # transient errors of network file systems
_PAUSES = (0.005, 0.02, 0.08)  # seconds before the second, third and fourth try
_WAYS_OUT = {
    errno.EDQUOT: "your quota there is used up: remove files of yours, or choose another directory",
    errno.EFBIG: "the file would be larger than `ulimit -f` or its file system allows: raise the limit, or "
    "choose another directory",
    errno.EROFS: "that file system is mounted read-only: choose another directory",
    errno.EACCES: "this user may not write there: change the permissions, or choose another directory",
    errno.EPERM: "the file or its folder is protected (`lsattr` says how): remove the protection, or choose "
    "another directory",
    errno.EMFILE: "this process has too many files open: raise `ulimit -n`",
    errno.ENFILE: "this machine has too many files open: close some, or raise fs.file-max",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOENT: "a folder on the way is gone: make it again, or choose another directory",
    errno.ENOTDIR: "a file is in the place of a folder: move it away, or choose another directory",
    errno.EISDIR: "a folder has that name: move it away, or choose another name",
    errno.EEXIST: "another program makes files of our names there: stop it, or choose another directory",
    errno.ELOOP: "a link was put there: remove it, or choose a directory that others cannot write to",
    errno.EIO: "the disk or the network failed: look at the system's log (`dmesg`), then "
    "start the same command again",
    errno.ENOMEM: "the kernel has no memory left: end other programs, or use a machine with more",
    errno.ESTALE: "the network file system lost it: mount it again, then start the same command again",
}


def repeated(
    operation: str,
    path: str | os.PathLike[str],
    call: Callable[[], _Result],
    done: Callable[[], _Result | None] = lambda: None,
) -> _Result:
    """Return the result of `call`; retry three times after EIO and ESTALE. Python itself retries EINTR.

    operation: a verb for the message ("write"). done: called after a failed retry; returns the result if an
    earlier try succeeded and only its answer was lost, and otherwise None. After the last try the OSError is
    raised with the message of `explained`.
    """
    for number in range(len(_PAUSES) + 1):
        try:
            return call()
        except OSError as error:
            result = done() if number else None
            if result is not None:
                return result
            if error.errno not in _PASSES or number == len(_PAUSES):
                raise explained(error, operation, path) from error
            time.sleep(_PAUSES[number])
    raise AssertionError("the last try returns or raises")


def is_resource_limit(error: OSError) -> bool:
    """True if the machine has run out of memory, processes, open files or disk space."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT)


def explained(error: OSError, operation: str, path: str | os.PathLike[str]) -> OSError:
    """Return the error with a message that names the file, the failed operation, and what the user can do."""
    reason = error.strerror or str(error)
    if reason.startswith("cannot "):
        return error
    return OSError(error.errno, f"cannot {operation}: {reason}{_way_out(error.errno, path)}", str(path))


def _way_out(number: int | None, path: str | os.PathLike[str]) -> str:
    if number == errno.ENOSPC:
        return f"{_free_space(path)}; free some space or choose another directory"
    advice = _WAYS_OUT.get(number or 0)
    return f"; {advice}" if advice else ""


def _free_space(path: str | os.PathLike[str]) -> str:
    """Return a phrase with the free bytes in `path`'s nearest existing parent; "" if unknown."""
    with contextlib.suppress(OSError):  # the working directory may have been removed
        for folder in Path(path).absolute().parents:
            if folder.is_dir():
                status = os.statvfs(folder)
                return f"; {status.f_bavail * status.f_frsize} bytes are free there"
    return ""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = re.compile(
    "|".join([*(re.escape(os.strerror(number)) for number in _FULL), " are free; free some space"])
)


def is_disk_full(error: BaseException) -> bool:
    """True if the error, or for other classes than OSError its message, is about a full disk or quota."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return isinstance(error, Exception) and _WORDS.search(str(error)) is not None


_REFUSED = (errno.EPERM, errno.EACCES, errno.EBUSY, errno.EROFS)


class NotReplacedError(PermissionError):
    """A new file cannot be renamed into place because a protected file has its name."""


def warn_unremoved(lines: Iterable[str]) -> None:
    """Print `lines`, each about a file that could not be removed. Each line is printed once per process."""
    for line in lines:
        tell_once(f"{line}; it stays where it is, and the run goes on")


def removed(remove: Callable[[], object], what: object) -> bool:
    """Call `remove`, and return True if the file is gone.

    If the system refuses, print a line and return False. what: the path that the line names.
    """
    from fastsft import _C

    try:
        remove()
    except FileNotFoundError:
        return True
    except (OSError, _C.FileError) as error:
        reason = str(error) if isinstance(error, _C.FileError) else f"{what}: {error.strerror or error}"
        warn_unremoved([reason])
        return False
    return True


def is_refusal(error: OSError) -> bool:
    """True if the error is that of a protected, busy or read-only file."""
    return error.errno in _REFUSED
