"""Files that a person has protected, or owns: each costs a line, and never a run."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from fastsft.runtime.messages import tell_once

_REFUSED = (errno.EPERM, errno.EACCES, errno.EBUSY, errno.EROFS)


class NotReplacedError(PermissionError):
    """A protected file has the name of a new one: the new one is not there, and the old one stays."""


def tell_unremoved(lines: Iterable[str]) -> None:
    """Each once: what could not be removed, and why."""
    for line in lines:
        tell_once(f"{line}; it stays where it is, and the run goes on")


def removed(remove: Callable[[], object], what: object) -> bool:
    """Call `remove`; False, with a line, when the system refuses it. what: for the line."""
    from fastsft import _C

    try:
        remove()
    except FileNotFoundError:
        return True
    except (OSError, _C.FileError) as error:
        reason = str(error) if isinstance(error, _C.FileError) else f"{what}: {error.strerror or error}"
        tell_unremoved([reason])
        return False
    return True


def is_refusal(error: OSError) -> bool:
    """True for what the kernel says of things that somebody has protected."""
    return error.errno in _REFUSED
