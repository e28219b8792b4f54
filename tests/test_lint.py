"""The formatters decide layout, the linters decide habits: clang-format, ruff and mypy find nothing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="could not import the tools of the extra [lint]")

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}
)
TOOLS = {
    "clang-format": [
        str(Path(sysconfig.get_path("scripts")) / "clang-format"),
        "--dry-run",
        "-Werror",
        *SOURCES,
    ],
    "ruff": [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
    "ruff-format": [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_lint(tool: str) -> None:
    result = subprocess.run(TOOLS[tool], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
