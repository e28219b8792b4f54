"""System calls that a kernel or file system does not know, injected by a seccomp filter of one thread."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import Any

RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(platform.machine())
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("yes", ctypes.c_uint8),
        ("no", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def deny(call: int, error: int) -> None:
    """From now on the system call `call` fails with `error` in this thread and those that it starts."""
    load, jump, give = 0x20, 0x15, 0x06
    lines = (_Instruction * 4)(
        (load, 0, 0, 0), (jump, 0, 1, call), (give, 0, 0, _ERRNO | error), (give, 0, 0, _ALLOW)
    )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    program = _Program(len(lines), lines)
    assert libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())


def with_denied(call: int, error: int, function: Callable[[], Any]) -> Any:
    """What `function` gives, or raises, in a thread in which `call` fails with `error`."""
    ended: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            deny(call, error)
            ended.append((function(), None))
        except BaseException as caught:
            ended.append((None, caught))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, caught = ended[0]
    if caught is not None:
        raise caught
    return result
