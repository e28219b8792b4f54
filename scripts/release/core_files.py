"""What a linked library says of itself, as `readelf` (binutils) prints it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """Libraries, folders, versions and symbols that a library asks the system for."""

    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]  # library, version: ("libc.so.6", "GLIBC_2.28")
    undefined: frozenset[str]  # symbols that it needs, of no version: those of torch and of the interpreter
    defined: frozenset[str]


def read_library(path: Path) -> Library:
    dynamic = _readelf("--dynamic", path)
    symbols = [line.split() for line in _readelf("--dyn-syms", path).splitlines()]
    rows = [words for words in symbols if len(words) >= 8 and words[0].rstrip(":").isdigit()]
    undefined = {
        words[7] for words in rows if words[6] == "UND" and words[4] == "GLOBAL" and "@" not in words[7]
    }
    return Library(
        needed=tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)),
        runpath=tuple(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)),
        versions=tuple(_versions(_readelf("--version-info", path))),
        undefined=frozenset(undefined),
        defined=frozenset(words[7].partition("@")[0] for words in rows if words[6] != "UND"),
    )


def _versions(text: str) -> list[tuple[str, str]]:
    """Pairs of the section of needed versions."""
    found, library = [], ""
    for line in text.partition("Version needs section")[2].splitlines():
        if match := re.search(r"File: (\S+)", line):
            library = match[1]
        elif match := re.search(r"Name: (\S+)", line):
            found.append((library, match[1]))
    return found


def _readelf(flag: str, path: Path) -> str:
    command = ["readelf", "--wide", flag, str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    ).stdout


def cuda_code(path: Path) -> set[str]:
    """GPUs for which a library has code (`sm_90`) and PTX (`compute_90`), by cuobjdump of CUDA or triton."""
    found: set[str] = set()
    if b".nv_fatbin" not in path.read_bytes():
        return found
    for option, kind in (("--list-elf", "sm_"), ("--list-ptx", "compute_")):
        command = [_cuobjdump(), option, str(path)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found |= {kind + number for number in re.findall(r"\.sm_(\w+)\.", listing)}
    return found


def _cuobjdump() -> str:
    if there := shutil.which("cuobjdump"):
        return there
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        return str(Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump")
    raise FileNotFoundError("expected cuobjdump in PATH or a triton with it, found none; pip install triton")
