"""What a user without rights may do: a child that is nobody, where the tests run as root."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

NOBODY = 65534


def as_plain_user(function: Callable[[], None]) -> str:
    """Call `function` in a forked child of another user; the type and text of what it raised, or ``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "left"
        try:
            os.close(reader)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            function()
            text = ""
        except BaseException as error:
            text = "".join(traceback.format_exception_only(error))
        finally:
            os.write(writer, text.encode()[:4096])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text
