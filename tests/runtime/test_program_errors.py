"""Errors of a script function as a program: which status and which line each has."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from fastsft import _C
from fastsft.program.main import EXIT_ERROR, EXIT_PEER_LOST, run_script

ALLOCATOR = (
    "all_gather embedding failed: DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"
)


LEFT_TO_FINALIZERS = """
import sys, zipfile
from fastsft.program.main import run_script

class Owner:
    def __init__(self):
        self.file, self.itself = zipfile.ZipFile(sys.argv[1], "w"), self
        self.file.writestr("a", "b")

run_script(lambda: Owner())
"""


def test_what_a_script_leaves_to_finalizers_is_finalized(tmp_path: Path) -> None:
    """As by the interpreter alone: programs freeze what they imported, not what a script makes."""
    subprocess.run([sys.executable, "-c", LEFT_TO_FINALIZERS, str(tmp_path / "a.zip")], check=True)
    with zipfile.ZipFile(tmp_path / "a.zip") as found:
        assert found.namelist() == ["a"]


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
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            EXIT_ERROR,
            "error: out of memory; give the run more, or smaller records and batches: CUDA out of memory",
        ),
        (
            torch.AcceleratorError("CUDA error: illegal access\nmore"),
            EXIT_ERROR,
            f"error: {_C.rank_status().partition(', step')[0]}, step",
        ),
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
