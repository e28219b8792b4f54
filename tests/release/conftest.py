"""Small libraries and wheels, linked and packed like those of a release."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from check_wheel import RUNPATH
from merge_wheels import write_wheel

Link = Callable[..., Path]
INFO = "fastsft-0.1.0.dist-info"
METADATA = """Metadata-Version: 2.1
Name: fastsft
Version: 0.1.0
Requires-Dist: torch==2.11.*
Requires-Dist: numpy>=1.26
"""
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n"


@pytest.fixture
def link(tmp_path: Path) -> Link:
    """Links a library of one function; of `versions`, each gives it a symbol of a library and a version."""

    def library(
        text: str = "void core(void) {}", *flags: str, runpath: str = RUNPATH, name: str = "core.so",
        versions: tuple[tuple[str, str], ...] = (),
    ) -> Path:  # fmt: skip
        stand_ins = [_stand_in(tmp_path, number, *each) for number, each in enumerate(versions)]
        calls = "".join(f"void of{n}(void); void use{n}(void) {{ of{n}(); }}\n" for n in range(len(versions)))
        extra = [f"-Wl,-rpath,{runpath}", "-Wl,--enable-new-dtags"] if runpath else []
        return _gcc(tmp_path / name, text + "\n" + calls, *flags, *extra, *map(str, stand_ins))

    return library


def _stand_in(folder: Path, number: int, file: str, version: str) -> Path:
    """Links a library of this file name that has a symbol of this version."""
    script = folder / f"{number}.map"
    script.write_text(f"{version} {{ global: of{number}; }};\n")
    place = folder / f"stand_in{number}.so"
    return _gcc(place, f"void of{number}(void) {{}}", f"-Wl,--version-script={script}", f"-Wl,-soname,{file}")


def _gcc(place: Path, text: str, *flags: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-x", "none", *flags, "-o", str(place)]
    subprocess.run(command, input=text, text=True, check=True)
    return place


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """A wheel as a build makes it, with these files besides its information."""

    def packed(name: str, files: dict[str, bytes], metadata: str = METADATA, tags: str = WHEEL) -> Path:
        information = {f"{INFO}/METADATA": metadata.encode(), f"{INFO}/WHEEL": tags.encode()}
        place = tmp_path / name / "fastsft-0.1.0-cp311-cp311-linux_x86_64.whl"
        place.parent.mkdir()
        write_wheel({"fastsft/__init__.py": b"", **files, **information}, place)
        return place

    return packed
