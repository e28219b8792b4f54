"""Errors of a script function as a program: which status and which line each has."""

from __future__ import annotations

import pytest

from fastsft import _C
from fastsft.program.main import EXIT_ERROR, EXIT_PEER_LOST, run_script

ALLOCATOR = (
    "all_gather embedding failed: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"
)


class Left(BaseException):
    """os._exit, which would end the tests."""


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (_C.CollectiveError(ALLOCATOR), EXIT_ERROR, "error: out of memory; give the run more"),
        (
            _C.FileError("cannot map a: Cannot allocate memory"),
            EXIT_ERROR,
            "error: out of memory; give the run more",
        ),
        (RuntimeError(ALLOCATOR), EXIT_ERROR, "error: out of memory; give the run more"),
        (
            _C.CollectiveError("all_gather failed: Connection closed by peer"),
            EXIT_PEER_LOST,
            "error: all_gather failed",
        ),
        (
            _C.PeerFailedError("rank 1: Cannot allocate memory"),
            EXIT_PEER_LOST,
            "error: rank 1: Cannot allocate memory",
        ),
        (
            _C.FileError("cannot write a: No space left on device"),
            EXIT_ERROR,
            "error: cannot write a: No space left",
        ),
    ],
)
def test_a_runtime_error(
    error: Exception,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def script() -> None:
        raise error

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("sys.argv", ["train", "--help"])
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises((Left, SystemExit)) as left:
        run_script(script)
    assert left.value.args[0] == status
    said = capfd.readouterr().err
    assert said.startswith(line) and "Traceback" not in said
