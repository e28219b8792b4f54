"""Errors that say that a file system has no room."""

from __future__ import annotations

import errno
import os
import re

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = re.compile(
    "|".join([*(re.escape(os.strerror(number)) for number in _FULL), " are free; free some space"])
)


def is_of_full_disk(error: BaseException) -> bool:
    """True for an OSError of a full disk or quota, and for errors of fastsft and libraries that name one."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return isinstance(error, Exception) and _WORDS.search(str(error)) is not None
