"""A build with CUDA holds machine code and PTX of every kernel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fastsft import _C

SOURCES = Path(__file__).parents[2] / "csrc"


def cuobjdump() -> str | None:
    """cuobjdump of the toolkit, or the one that comes with triton."""
    found = shutil.which("cuobjdump")
    triton = importlib.util.find_spec("triton")
    if found is None and triton is not None and triton.origin is not None:
        bundled = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        found = str(bundled) if bundled.is_file() else None
    return found


def listing(option: str) -> str:
    tool = cuobjdump()
    if not _C.with_cuda or tool is None:
        reason = "fastsft was built without CUDA kernels" if tool else "no cuobjdump"
        if os.environ.get("FASTSFT_REQUIRE_CUDA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return subprocess.run([tool, option, _C.__file__], capture_output=True, text=True, check=True).stdout


def kernels_in_sources() -> set[str]:
    pattern = re.compile(
        r"__global__\s+void\s+(?:__launch_bounds__\([^()]*(?:\([^()]*\))?[^()]*\)\s*)?(\w+)\s*\("
    )
    return {name for path in SOURCES.rglob("*.cu") for name in pattern.findall(path.read_text())}


def test_every_kernel_is_in_the_extension() -> None:
    kernels = kernels_in_sources()
    assert {"forward_kernel", "adamw_kernel", "cross_entropy_kernel", "key_kernel"} <= kernels
    symbols = listing("--dump-elf-symbols")
    assert not [name for name in kernels if name not in symbols]


def test_machine_code_and_ptx_are_embedded() -> None:
    assert re.search(r"sm_\d+", listing("--list-elf"))
    assert "ptx" in listing("--list-ptx")
